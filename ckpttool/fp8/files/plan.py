"""Reading and writing of `plan.json` in a folder of FP8 experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UnsafeError
from ckpttool.core.formats.strict_json import (
    Json,
    ParseError,
    as_int,
    as_list,
    as_object,
    as_str,
    get_bool,
    get_int,
    get_list,
    get_object,
    get_optional_float,
    get_optional_str,
    get_str,
    measured,
    parse_json,
)
from ckpttool.fp8.files.document import as_json, fields_of
from ckpttool.fp8.model.curves import CurveClass, FloorFrom, Onset
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Operand, Recipe
from ckpttool.fp8.model.plan import (
    Change,
    Evidence,
    Experiment,
    Fp8Plan,
    Products,
    StartPoint,
    Suspicion,
    Trial,
)

SCHEMA = "ckpttool/fp8-plan/1"
NAME = "plan.json"
LIMIT = 16 << 20
"""Maximum size in bytes. A plan of a hundred experiments needs a hundredth of this."""

_E = TypeVar("_E", bound=Enum)


def plan_document(plan: Fp8Plan) -> dict[str, Json]:
    """Encode a plan. `parse_plan` decodes it, except for the files' contents, which are stored next to it."""
    start = plan.start
    return {
        "schema": SCHEMA,
        "round": plan.round,
        "framework": plan.framework,
        "versions": {"framework": plan.framework_version, "te": plan.engine_version},
        "recipe": as_json(plan.recipe),
        "compare": suspicion_document(plan.suspicion),
        "start": {
            "name": start.name,
            "step": start.step,
            "path": start.path,
            "evidence": start.evidence.value,
            "scale_history": start.has_history,
        },
        "horizon": plan.horizon,
        "window": [*plan.window],
        "limit": measured(plan.limit),
        "baseline": [*plan.baseline],
        "candidate": [*plan.candidate],
        "columns": plan.columns,
        "extras": [*plan.extras],
        "layers": {"numbers": [*plan.layers], "in": plan.layers_in},
        "output": plan.output,
        "experiments": [experiment_document(experiment) for experiment in plan.experiments],
        "steps_in_all": plan.steps_in_all,
        "reason": None,
        "notes": [*plan.notes],
    }


def suspicion_document(suspicion: Suspicion) -> dict[str, Json]:
    """Encode the result of the comparison."""
    document = fields_of(suspicion)
    return {"class": document.pop("kind"), **document}


def experiment_document(experiment: Experiment) -> dict[str, Json]:
    """Encode one experiment, as in `experiment.json` of its folder."""
    trial = experiment.trial
    return {
        "id": trial.id,
        "round": trial.round,
        "title": trial.title,
        "arithmetic": as_json(trial.products),
        "layers": trial.layers or "all",
        "operand": as_json(trial.operand),
        "recipe": as_json(trial.recipe),
        "regrouped": trial.is_regrouped,
        "drops_history": trial.drops_history,
        "without": [*trial.without],
        "from_last": trial.from_last,
        "change": None if experiment.change is None else change_document(experiment.change),
        "start_step": experiment.first_step,
        "last_step": experiment.last_step,
        "steps": experiment.steps,
        "device_hours": experiment.device_hours,
        "expect": {"if_guilty": trial.if_guilty, "if_innocent": trial.if_innocent},
        "log": [*experiment.logs] or None,
        "expressible": experiment.change is not None,
        "reason": experiment.reason,
    }


def change_document(change: Change) -> dict[str, Json]:
    """Encode the changes. For files, encode only their names."""
    names: list[Json] = [name for name, _ in change.files]
    return {**fields_of(change), "set": dict(change.set), "env": dict(change.env), "files": names}


def parse_plan(data: bytes, *, where: str) -> Fp8Plan:
    """Decode a plan.

    Args:
        data: The complete file.
        where: Name of the file for error messages.

    Raises:
        UnsafeError: ckpttool did not write the file, so files next to it must not be changed.
    """
    try:
        document = as_object(parse_json(data, where=where, limit=LIMIT), where=where)
        return _plan(_Record(document, where))
    except (ParseError, ValueError) as error:
        raise UnsafeError(f"{error!s:.500}: not a plan of ckpttool") from None


class _Record:
    """An object of the document. Its values are converted to the expected type, or raise a `ParseError`."""

    def __init__(self, raw: Mapping[str, Json], where: str) -> None:
        self._raw, self._where = raw, where

    def has(self, key: str) -> bool:
        return self._raw.get(key) is not None

    def error(self, problem: str, key: str) -> ParseError:
        return ParseError(problem, where=self._where, key=key)

    def text(self, key: str) -> str:
        return get_str(self._raw, key, where=self._where)

    def optional_text(self, key: str) -> str | None:
        return get_optional_str(self._raw, key, where=self._where)

    def whole(self, key: str, minimum: int = 0) -> int:
        return get_int(self._raw, key, minimum=minimum, where=self._where)

    def step(self, key: str) -> Step:
        return Step(self.whole(key))

    def number(self, key: str) -> float | None:
        return get_optional_float(self._raw, key, where=self._where)

    def flag(self, key: str) -> bool:
        return get_bool(self._raw, key, where=self._where)

    def items(self, key: str) -> Sequence[Json]:
        return get_list(self._raw, key, where=self._where)

    def texts(self, key: str) -> tuple[str, ...]:
        items = as_list(self._raw.get(key), where=self._where, key=key)
        return tuple(as_str(item, where=self._where, key=key) for item in items)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        members = get_object(self._raw, key, where=self._where).items()
        return tuple((name, as_str(value, where=self._where, key=name)) for name, value in members)

    def inside(self, key: str) -> _Record:
        return _Record(get_object(self._raw, key, where=self._where), self._where)

    def each(self, key: str) -> Iterator[_Record]:
        return (_Record(as_object(item, where=self._where), self._where) for item in self.items(key))

    def word(self, kind: type[_E], key: str) -> _E:
        text = self.text(key)
        try:
            return kind(text)
        except ValueError:
            raise self.error(f"expected a known word, found {text!a:.80}", key) from None

    def optional_word(self, kind: type[_E], key: str) -> _E | None:
        return self.word(kind, key) if self.has(key) else None


def _plan(record: _Record) -> Fp8Plan:
    if not record.has("schema") or record.text("schema") != SCHEMA:
        raise record.error(f"expected {SCHEMA}", "schema")
    versions, start, layers = (record.inside(key) for key in ("versions", "start", "layers"))
    window = record.items("window")
    if len(window) != 2:  # noqa: PLR2004  first and last
        raise record.error("expected two steps", "window")
    first, last = (Step(as_int(step)) for step in window)
    return Fp8Plan(
        round=record.whole("round"),
        framework=record.text("framework"),
        framework_version=versions.optional_text("framework"),
        engine_version=versions.optional_text("te"),
        recipe=record.optional_word(Recipe, "recipe"),
        suspicion=_suspicion(record.inside("compare")),
        start=StartPoint(
            name=start.optional_text("name"),
            step=start.step("step"),
            path=start.optional_text("path"),
            evidence=start.word(Evidence, "evidence"),
            has_history=start.flag("scale_history") if start.has("scale_history") else None,
        ),
        horizon=record.whole("horizon", minimum=1),
        window=(first, last),
        limit=record.number("limit") or 0.0,
        baseline=record.texts("baseline"),
        candidate=record.texts("candidate"),
        columns=record.optional_text("columns"),
        experiments=tuple(map(_experiment, record.each("experiments"))),
        extras=record.texts("extras"),
        layers=tuple(as_int(number) for number in layers.items("numbers")),
        layers_in=layers.text("in"),
        output=record.text("output"),
        notes=record.texts("notes"),
    )


def _suspicion(record: _Record) -> Suspicion:
    onset = None
    if record.has("onset"):
        steps = record.inside("onset")
        onset = Onset(step=steps.step("step"), not_before=steps.step("not_before"), not_after=steps.step("not_after"))
    return Suspicion(
        kind=record.word(CurveClass, "class"),
        gap=record.number("gap"),
        relative_gap=record.number("relative_gap"),
        limit=record.number("limit"),
        tolerance=record.number("tolerance"),
        floor_from=record.optional_word(FloorFrom, "floor_from"),
        onset=onset,
    )


def _experiment(record: _Record) -> Experiment:
    arithmetic, expect = record.inside("arithmetic"), record.inside("expect")
    fprop, dgrad, wgrad = (arithmetic.word(Arithmetic, gemm.value) for gemm in Gemm)
    layers, name = record.text("layers"), record.text("id")
    if not name or not all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name):
        raise record.error(f"expected the name of an experiment, found {name!a:.80}", "id")
    trial = Trial(
        id=name,
        round=record.whole("round"),
        title=record.text("title"),
        products=Products(fprop=fprop, dgrad=dgrad, wgrad=wgrad),
        if_guilty=expect.text("if_guilty"),
        if_innocent=expect.text("if_innocent"),
        layers=None if layers == "all" else layers,
        operand=record.optional_word(Operand, "operand"),
        recipe=record.optional_word(Recipe, "recipe"),
        is_regrouped=record.flag("regrouped"),
        drops_history=record.flag("drops_history"),
        without=record.texts("without"),
        from_last=record.flag("from_last"),
    )
    change = None
    if record.has("change"):
        changed = record.inside("change")
        change = Change(
            remove=changed.texts("remove"),
            set=changed.pairs("set"),
            env=changed.pairs("env"),
            files=tuple((file, "") for file in changed.texts("files")),
            notes=changed.texts("notes"),
        )
    return Experiment(
        trial=trial,
        change=change,
        reason=record.optional_text("reason"),
        first_step=record.step("start_step"),
        last_step=record.step("last_step"),
        device_hours=record.number("device_hours"),
        logs=record.texts("log") if record.has("log") else (),
    )
