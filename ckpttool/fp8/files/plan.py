"""`plan.json` of a folder of FP8 experiments: as it is written, printed, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
"""Bytes. A plan of a hundred experiments has a hundredth of it."""

_E = TypeVar("_E", bound=Enum)


def plan_document(plan: Fp8Plan) -> dict[str, Json]:
    """Spell a plan; `parse_plan` reads it back, but for the contents of files, which lie beside it."""
    start = plan.start
    return {
        "schema": SCHEMA,
        "round": plan.round,
        "framework": plan.framework,
        "versions": {"framework": plan.framework_version, "te": plan.engine_version},
        "recipe": None if plan.recipe is None else plan.recipe.value,
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
    """Spell what the comparison said."""
    onset = suspicion.onset
    return {
        "class": suspicion.kind.value,
        "gap": measured(suspicion.gap),
        "relative_gap": measured(suspicion.relative_gap),
        "limit": measured(suspicion.limit),
        "tolerance": measured(suspicion.tolerance),
        "floor_from": None if suspicion.floor_from is None else suspicion.floor_from.value,
        "onset": None
        if onset is None
        else {"step": onset.step, "not_before": onset.not_before, "not_after": onset.not_after},
    }


def experiment_document(experiment: Experiment) -> dict[str, Json]:
    """Spell one experiment: `experiment.json` of its folder holds the same."""
    trial = experiment.trial
    return {
        "id": trial.id,
        "round": trial.round,
        "title": trial.title,
        "arithmetic": {gemm.value: trial.products.of(gemm).value for gemm in Gemm},
        "layers": trial.layers or "all",
        "operand": None if trial.operand is None else trial.operand.value,
        "recipe": None if trial.recipe is None else trial.recipe.value,
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
    """Spell what is changed; of files their names."""
    return {
        "remove": [*change.remove],
        "set": dict(change.set),
        "env": dict(change.env),
        "files": [name for name, _ in change.files],
        "notes": [*change.notes],
    }


def parse_plan(data: bytes, *, where: str) -> Fp8Plan:
    """Read a plan back.

    Args:
        data: The whole file.
        where: Names it in the error.

    Raises:
        UnsafeError: It is none that was written here: what lies beside it must not be touched.
    """
    try:
        document = as_object(parse_json(data, where=where, limit=LIMIT), where=where)
        return _plan(document, where)
    except (ParseError, ValueError) as error:
        raise UnsafeError(f"{error!s:.500}: no plan of ckpttool's") from None


def _plan(document: Mapping[str, Json], where: str) -> Fp8Plan:
    if document.get("schema") != SCHEMA:
        raise ParseError(f"expected {SCHEMA}", where=where, key="schema")
    versions, start = get_object(document, "versions", where=where), get_object(document, "start", where=where)
    layers, window = get_object(document, "layers", where=where), get_list(document, "window", where=where)
    if len(window) != 2:  # noqa: PLR2004  first and last
        raise ParseError("expected two steps", where=where, key="window")
    first, last = (Step(as_int(step)) for step in window)
    history = start.get("scale_history")
    return Fp8Plan(
        round=get_int(document, "round", where=where),
        framework=get_str(document, "framework", where=where),
        framework_version=get_optional_str(versions, "framework", where=where),
        engine_version=get_optional_str(versions, "te", where=where),
        recipe=_optional(Recipe, document, "recipe", where),
        suspicion=_suspicion(get_object(document, "compare", where=where), where),
        start=StartPoint(
            name=get_optional_str(start, "name", where=where),
            step=Step(get_int(start, "step", where=where)),
            path=get_optional_str(start, "path", where=where),
            evidence=_word(Evidence, start, "evidence", where),
            has_history=None if history is None else get_bool(start, "scale_history", where=where),
        ),
        horizon=get_int(document, "horizon", minimum=1, where=where),
        window=(first, last),
        limit=get_optional_float(document, "limit", where=where) or 0.0,
        baseline=_texts(document, "baseline", where),
        candidate=_texts(document, "candidate", where),
        columns=get_optional_str(document, "columns", where=where),
        experiments=tuple(
            _experiment(as_object(item, where=where), where) for item in get_list(document, "experiments", where=where)
        ),
        extras=_texts(document, "extras", where),
        layers=tuple(as_int(number) for number in get_list(layers, "numbers", where=where)),
        layers_in=get_str(layers, "in", where=where),
        output=get_str(document, "output", where=where),
        notes=_texts(document, "notes", where),
    )


def _suspicion(record: Mapping[str, Json], where: str) -> Suspicion:
    onset = None
    if record.get("onset") is not None:
        onset_record = get_object(record, "onset", where=where)
        step, early, late = (
            Step(get_int(onset_record, key, where=where)) for key in ("step", "not_before", "not_after")
        )
        onset = Onset(step=step, not_before=early, not_after=late)
    gap, relative, limit, tolerance = (
        get_optional_float(record, key, where=where) for key in ("gap", "relative_gap", "limit", "tolerance")
    )
    return Suspicion(
        kind=_word(CurveClass, record, "class", where),
        gap=gap,
        relative_gap=relative,
        limit=limit,
        tolerance=tolerance,
        floor_from=_optional(FloorFrom, record, "floor_from", where),
        onset=onset,
    )


def _experiment(record: Mapping[str, Json], where: str) -> Experiment:
    arithmetic, expect = get_object(record, "arithmetic", where=where), get_object(record, "expect", where=where)
    fprop, dgrad, wgrad = (_word(Arithmetic, arithmetic, gemm.value, where) for gemm in Gemm)
    layers, name = get_str(record, "layers", where=where), get_str(record, "id", where=where)
    if not name or not all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name):
        raise ParseError(f"expected the name of an experiment, found {name!a:.80}", where=where, key="id")
    trial = Trial(
        id=name,
        round=get_int(record, "round", where=where),
        title=get_str(record, "title", where=where),
        products=Products(fprop=fprop, dgrad=dgrad, wgrad=wgrad),
        if_guilty=get_str(expect, "if_guilty", where=where),
        if_innocent=get_str(expect, "if_innocent", where=where),
        layers=None if layers == "all" else layers,
        operand=_optional(Operand, record, "operand", where),
        recipe=_optional(Recipe, record, "recipe", where),
        is_regrouped=get_bool(record, "regrouped", where=where),
        drops_history=get_bool(record, "drops_history", where=where),
        without=_texts(record, "without", where),
        from_last=get_bool(record, "from_last", where=where),
    )
    return Experiment(
        trial=trial,
        change=None if record.get("change") is None else _change(get_object(record, "change", where=where), where),
        reason=get_optional_str(record, "reason", where=where),
        first_step=Step(get_int(record, "start_step", where=where)),
        last_step=Step(get_int(record, "last_step", where=where)),
        device_hours=get_optional_float(record, "device_hours", where=where),
        logs=() if record.get("log") is None else _texts(record, "log", where),
    )


def _change(record: Mapping[str, Json], where: str) -> Change:
    settings, env = get_object(record, "set", where=where), get_object(record, "env", where=where)
    return Change(
        remove=_texts(record, "remove", where),
        set=_pairs(settings, where),
        env=_pairs(env, where),
        files=tuple((name, "") for name in _texts(record, "files", where)),
        notes=_texts(record, "notes", where),
    )


def _pairs(record: Mapping[str, Json], where: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, as_str(value, where=where, key=name)) for name, value in record.items())


def _texts(record: Mapping[str, Json], key: str, where: str) -> tuple[str, ...]:
    return tuple(_strings(as_list(record.get(key), where=where, key=key), where, key))


def _strings(values: Iterable[Json], where: str, key: str) -> Iterable[str]:
    return (as_str(value, where=where, key=key) for value in values)


def _word(kind: type[_E], record: Mapping[str, Json], key: str, where: str) -> _E:
    text = get_str(record, key, where=where)
    try:
        return kind(text)
    except ValueError:
        raise ParseError(f"expected a word that ckpttool knows, found {text!a:.80}", where=where, key=key) from None


def _optional(kind: type[_E], record: Mapping[str, Json], key: str, where: str) -> _E | None:
    return None if record.get(key) is None else _word(kind, record, key, where)
