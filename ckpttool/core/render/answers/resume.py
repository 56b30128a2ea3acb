"""The settings of a plan, as JSON, as texts to copy and as YAML, for every trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from ckpttool.core.domain.load_settings import LoadSettings, PlaceKind, TrainerSetting
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.render.escape import shown

if TYPE_CHECKING:
    from ckpttool.core.render.json import Document


def load_document(load: LoadSettings) -> Document:
    """Return every setting with its location, and the steps to do first."""
    record: dict[str, Document] = {
        "trainer": load.trainer,
        "path": load.path,
        "settings": [setting_document(setting) for setting in (*load.settings, *load.data)],
        "first": [{"do": "rename", "from": rename.source, "to": rename.target} for rename in load.first],
    }
    return {**record, "remarks": list(load.remarks)} if load.remarks else record


def setting_document(setting: TrainerSetting) -> dict[str, Document]:
    """Return a setting with its location."""
    record: dict[str, Document] = {"place": str(setting.place), "value": setting.value}
    return {**record, "alternative": True} if setting.is_alternative else record


def fragment(settings: Iterable[TrainerSetting]) -> list[tuple[str, str]]:
    """Format each setting as the kind of its location and the text to copy, the most important first.

    If a setting repeats the previous one in another location, its kind begins with `or`.
    """
    texts: dict[tuple[bool, PlaceKind], list[TrainerSetting]] = {}
    for setting in settings:
        if not setting.is_default:
            texts.setdefault((setting.is_alternative, setting.place.kind), []).append(setting)
    in_order = sorted(texts, key=lambda key: (key[0], list(_AT).index(key[1])))
    return [
        (f"or {_AT[kind]}" if instead else _AT[kind], text)
        for instead, kind in in_order
        for text in _setting_lines(kind, texts[instead, kind])
    ]


_AT = {
    PlaceKind.FILE: "first write",
    PlaceKind.ENVIRONMENT: "environment",
    PlaceKind.ARGUMENT: "arguments",
    PlaceKind.CONFIG: "config",
    PlaceKind.CODE: "code",
}
"""Labels of the locations, in the order of display."""

_CALL = re.compile(r"(?P<callee>[^(]*)\((?P<others>\.\.\., )?(?P<keyword>[^)]*)\)")


def _setting_lines(kind: PlaceKind, settings: Sequence[TrainerSetting]) -> list[str]:
    match kind:
        case PlaceKind.ARGUMENT:
            return [" ".join(map(_argument, settings))]
        case PlaceKind.CODE:
            return _calls(settings)
        case PlaceKind.FILE:
            return [shown(f"{setting.value} to {setting.place.name}") for setting in settings]
        case PlaceKind.ENVIRONMENT:
            return [" ".join(_assigned(setting) for setting in settings)]
        case PlaceKind.CONFIG:  # pragma: no branch  mypy knows all
            from ckpttool.core.render.yaml_edit import spell

            return [f"{setting.place.name}: {spell(setting.value)}" for setting in settings]


def _argument(setting: TrainerSetting) -> str:
    from ckpttool.core.render.shell import join

    name, value = setting.place.name, setting.value
    if not name.startswith("-"):
        return _assigned(setting)
    return name if value is True else join([name, str(value)])


def _assigned(setting: TrainerSetting) -> str:
    from ckpttool.core.render.shell import quote

    return f"{setting.place.name}={quote(str(setting.value))}"


def _calls(settings: Iterable[TrainerSetting]) -> list[str]:
    """Encode each call once with all its keywords; add an ellipsis if all its settings show other arguments."""
    calls: dict[str, list[re.Match[str]]] = {}
    values = {}
    for setting in settings:
        call = _CALL.fullmatch(setting.place.name)
        if call is None:
            raise AssertionError(f"expected a call with a keyword, found {setting.place.name!r}")
        calls.setdefault(call["callee"], []).append(call)
        values[call["callee"], call["keyword"]] = setting.value
    texts = []
    for callee, keywords in calls.items():
        ellipsis = ["..."] if all(call["others"] for call in keywords) else []
        arguments = [f"{call['keyword']}={values[callee, call['keyword']]!r}" for call in keywords]
        texts.append(f"{callee}({', '.join([*ellipsis, *arguments])})")
    return texts


def _yaml_lines(settings: Iterable[TrainerSetting]) -> list[str]:
    from ckpttool.core.render.yaml_edit import spell

    tree = _Section()
    for setting in settings:
        *sections, key = setting.place.name.split(".")
        reduce(_Section.within, sections, tree)[key] = spell(setting.value)
    return list(tree.lines())


def yaml_block(plan: ResumePlan, remarks: Iterable[str]) -> str:
    """Return the settings to paste into the training config; everything else is a comment.

    Args:
        plan: The plan, with the path as the training run sees it.
        remarks: Further comments, one line each.

    Raises:
        UsageError: YAML cannot represent a value.
    """
    from ckpttool.core.render.shell import join
    from ckpttool.core.render.yaml_edit import spell

    renames = (join(["mv", "--", rename.source, rename.target]) for rename in plan.load.first)
    comments = [*remarks, *(f"first rename, in the checkpoint folder: {command}" for command in renames)]
    settings = [*plan.load.settings, *plan.load.data]
    in_config = [setting for setting in settings if setting.place.kind is PlaceKind.CONFIG]
    elsewhere = fragment(setting for setting in settings if setting.place.kind is not PlaceKind.CONFIG)
    comments += [f"{kind}: {text}" for kind, text in elsewhere]
    comments += plan.load.remarks
    comments += [
        f"{setting.place.name}: {spell(setting.value)} is the default; set it if the config differs"
        for setting in in_config
        if setting.is_default
    ]
    lines = _yaml_lines(setting for setting in in_config if not setting.is_default)
    return "\n".join((*(f"# {shown(comment)}" for comment in comments), *lines))


class _Section(dict[str, "str | _Section"]):
    """Keys of a config, each with a value as YAML or with a section."""

    def within(self, name: str) -> _Section:
        subsection = self.setdefault(name, _Section())
        if isinstance(subsection, str):
            raise TypeError(f"{name} is a setting and a section")
        return subsection

    def lines(self, indent: str = "") -> Iterator[str]:
        for key, value in self.items():
            if isinstance(value, str):
                yield f"{indent}{key}: {value}"
            else:
                yield f"{indent}{key}:"
                yield from value.lines(f"{indent}  ")
