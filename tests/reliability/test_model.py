"""Any order of what happens to a training: what is chosen is what a plain reference chooses, nothing good is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.reliability.figures import Figure, Programme
from tests.reliability.model import WORLD, Kind, Place, Save, Shard
from tests.reliability.model_legacy import Habit, Legacy
from tests.reliability.model_machine import Judged, Tally
from tests.reliability.model_newer import TRACKER, Newer

RANKS = st.integers(0, WORLD - 1)


class LegacyTraining(Judged[Legacy]):
    """`rank_N/` folders, and everything that happens to them."""

    run = 0
    step = 0

    @initialize(fmt=st.sampled_from(["ckpt", "safetensors"]), sliced=st.booleans(), declared=st.booleans())
    def first(self, fmt: str, *, sliced: bool, declared: bool) -> None:
        self.model = Legacy(self.base, Habit("ckpt" if fmt == "ckpt" else "safetensors", sliced))
        self.world = WORLD if declared else None
        self.train(4)

    def some(self, data: st.DataObject, *kinds: Kind) -> Place | None:
        """Draw one of the shards that are of these kinds, or of any."""
        found = [place for place, shard in sorted(self.model.shards.items()) if not kinds or shard.kind in kinds]
        return data.draw(st.sampled_from(found)) if found else None

    # ---- the training ----

    @rule(saves=st.integers(1, 3))
    def train(self, saves: int) -> None:
        for _ in range(saves):
            self.step += 1
            self.model.save((self.run, self.step))

    @rule(saves=st.integers(1, 3), back=st.sampled_from([0, 0, 1, 2, 3, 5]))
    def restart(self, saves: int, back: int) -> None:
        """Go on, or go back; a run that saved nothing leaves no number."""
        if any(run == self.run for run, _ in self.model.saves()):
            self.run += 1
            self.step = max(0, self.step - back)
        self.train(saves)

    @rule(ranks=st.sets(RANKS, max_size=WORLD - 1), left=st.sampled_from(["nothing", "stump", "temporary", "run"]))
    def crash_while_saving(self, ranks: set[int], left: str) -> None:
        if left == "run":
            self.restart(0, 1)
        self.step += 1
        self.model.save((self.run, self.step), sorted(ranks))
        if left == "stump" and ranks:
            self.model.cut((self.run, self.step, max(ranks)), 100)
        if left == "temporary":
            self.model.leave_unfinished((self.run, self.step, min(set(range(WORLD)) - ranks)))

    # ---- what people do ----

    @rule(data=st.data())
    def copy_a_shard(self, data: st.DataObject) -> None:
        """Put a shard where another belongs, most often one of the same save or of the same step."""
        source, target = self.some(data, Kind.WHOLE), self.some(data)
        if source is not None and target is not None:
            near = data.draw(st.sampled_from([source, (*target[:2], source[2]), (source[0], target[1], target[2])]))
            self.model.copy(near if self.is_whole(near) else source, target)

    def is_whole(self, place: Place) -> bool:
        return place in self.model.shards and self.model.shards[place].kind is Kind.WHOLE

    @rule(data=st.data(), older=st.integers(1, 3), ranks=st.sets(RANKS, min_size=1))
    def go_stale(self, data: st.DataObject, older: int, ranks: set[int]) -> None:
        run, step, _ = self.some(data) or (0, 0, 0)
        for rank in ranks:
            source, target = (run, step - older, rank), (run, step, rank)
            if self.is_whole(source) and target in self.model.shards:
                self.model.copy(source, target)

    @rule(data=st.data(), ahead=st.integers(1000, 1003))
    def copy_under_a_wrong_step(self, data: st.DataObject, ahead: int) -> None:
        place = self.some(data, Kind.WHOLE)
        if place is not None:
            self.model.copy(place, (place[0], ahead, place[2]))

    @rule(rank=RANKS, how=st.sampled_from(["back up", "bring back", "bring back", "replace", "replace, renamed"]))
    def copy_a_folder(self, rank: int, how: str) -> None:
        if rank not in self.model.backups:
            self.model.back_up(rank)
        elif how == "bring back":
            self.model.bring_back(rank)
        elif how.startswith("replace"):
            self.model.replace_folder(rank, (rank + 1) % WORLD, renamed=how.endswith("renamed"))
            self.train(2)

    @rule(rank=RANKS, how=st.sampled_from(["stale", "ahead", "torn", "missing"]))
    def meta_goes_wrong(self, rank: int, how: str) -> None:
        file = f"checkpoint/rank_{rank}/meta.json"
        if how == "missing":
            (self.model.tree.output / file).unlink(missing_ok=True)
        elif how == "torn":
            self.model.tree.file(file, '{"last_ep')
        else:
            step = 1 if how == "stale" else self.step + 7
            name = Path(self.model.path((self.run, step, rank))).name
            self.model.tree.meta(rank, step, 1, name)

    @rule(data=st.data(), marks=st.sampled_from([[0], [1], [1], [0, 1], [1, 0], [2], [0, 2], []]), rest=st.booleans())
    def edit_health(self, data: st.DataObject, marks: list[int], *, rest: bool) -> None:
        place = self.some(data)
        if place is not None:
            self.model.marks[place[:2]] = marks
        if rest:
            self.model.marks |= {save: [0] for save in self.model.saves() if save not in self.model.marks}
        self.model.is_health_torn = rest and marks == [1, 0]
        self.model.write_health()

    # ---- what disks do ----

    @rule(data=st.data(), bit=st.integers(0, 1 << 14), weights=st.booleans())
    def flip(self, data: st.DataObject, bit: int, *, weights: bool) -> None:
        place = self.some(data, Kind.WHOLE)
        if place is not None:
            self.model.flip(place, bit, weights=weights)

    @rule(data=st.data(), size=st.integers(0, 400))
    def cut(self, data: st.DataObject, size: int) -> None:
        place = self.some(data, Kind.WHOLE, Kind.ROTTEN)
        if place is not None and size < len(self.model.shards[place].data):
            self.model.cut(place, size)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        place = self.some(data)
        if place is not None:
            self.model.remove(place)

    @precondition(lambda self: any(self.model.manifest(save).exists() for save in self.model.saves()))
    @rule(data=st.data())
    def tear_a_manifest(self, data: st.DataObject) -> None:
        sealed = [save for save in self.model.saves() if self.model.manifest(save).exists()]
        self.model.tear_manifest(data.draw(st.sampled_from(sealed)))

    # ---- what the judge asks ----

    def belongs(self, path: str, save: Save) -> bool:
        manifest = self.model.manifest(save).relative_to(self.model.tree.checkpoint).as_posix()
        return path in {
            manifest,
            *(self.model.path((*save, rank)).removeprefix("checkpoint/") for rank in range(WORLD)),
        }

    def is_record(self, path: str) -> bool:
        folder, _, name = path.partition("/")
        return name == "meta.json" and folder in {f"rank_{rank}" for rank in range(WORLD)}

    def records(self, name: str) -> list[tuple[str, str]]:
        (save,) = (save for save in self.model.saves() if self.model.spelled(save) == name)
        return [(f"rank_{rank}/meta.json", Path(self.model.path((*save, rank))).name) for rank in range(WORLD)]


class NewerTraining(Judged[Newer]):
    """`iteration_*/` folders, and everything that happens to them."""

    step = 0

    @initialize(declared=st.booleans())
    def first(self, *, declared: bool) -> None:
        self.model = Newer(self.base)
        self.world = WORLD if declared else None
        self.train(4, 0)

    def some(self, data: st.DataObject, *kinds: Kind, records: bool = False) -> tuple[int, str] | None:
        """Draw a file of one of these kinds, or of any."""
        found = [
            (step, name)
            for step in sorted(self.model.shards)
            for name, shard in sorted((self.model.shards[step] if records else self.model.ranks_of(step)).items())
            if not kinds or shard.kind in kinds
        ]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(saves=st.integers(1, 3), status=st.sampled_from([0, 0, 1, None]))
    def train(self, saves: int, status: int | None) -> None:
        for _ in range(saves):
            self.step += 1
            self.model.save(self.step, status=status)

    @rule(back=st.integers(1, 4))
    def go_back_and_train(self, back: int) -> None:
        self.step = max(0, self.step - back)
        self.train(1, 0)

    @rule(ranks=st.sets(RANKS, min_size=1), done=st.booleans())
    def crash_while_saving(self, ranks: set[int], *, done: bool) -> None:
        self.step += 1
        self.model.save(self.step, sorted(ranks), done=done)

    @precondition(lambda self: not self.model.is_mostly_strange())
    @rule(data=st.data())
    def copy_a_shard(self, data: st.DataObject) -> None:
        source, target = self.some(data, Kind.WHOLE), self.some(data)
        if source is not None and target is not None:
            shard = self.model.shards[source[0]][source[1]]
            is_replica = source[0] == target[0] and ("-opt-" in source[1]) == ("-opt-" in target[1])
            self.model.put(*target, shard if is_replica else Shard(shard.data, Kind.TWIN))

    @rule(data=st.data(), ahead=st.integers(1, 3))
    def copy_a_folder(self, data: st.DataObject, ahead: int) -> None:
        step, to = data.draw(st.sampled_from(sorted(self.model.shards) or [0])), self.step + ahead
        if step in self.model.shards and to not in self.model.shards:
            self.model.copy_folder(step, to)

    @rule(data=st.data(), status=st.sampled_from([0, 1, None]))
    def edit_health(self, data: st.DataObject, status: int | None) -> None:
        if self.model.shards:
            self.model.mark(data.draw(st.sampled_from(sorted(self.model.shards))), status)

    @rule(how=st.sampled_from(["stale", "ahead", "torn", "", None]))
    def tracker_goes_wrong(self, how: str | None) -> None:
        self.model.track({"stale": str(max(1, self.step - 2)), "ahead": str(self.step + 5)}.get(how or "", how))

    @rule(data=st.data(), bit=st.integers(0, 1 << 14))
    def flip(self, data: st.DataObject, bit: int) -> None:
        found = self.some(data, Kind.WHOLE)
        if found is not None:
            self.model.flip(*found, bit)

    @rule(data=st.data(), size=st.integers(0, 2000))
    def cut(self, data: st.DataObject, size: int) -> None:
        found = self.some(data, Kind.WHOLE, records=True)
        if found is not None:
            content = self.model.shards[found[0]][found[1]].data
            self.model.put(*found, Shard(content[: min(size, len(content) - 1)], Kind.BROKEN))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        found = self.some(data, records=True)
        if found is not None:
            self.model.remove(*found)

    def belongs(self, path: str, save: Save) -> bool:
        return path.startswith(f"{self.model.spelled(save)}/")

    def is_record(self, path: str) -> bool:
        return path == TRACKER

    def records(self, name: str) -> list[tuple[str, str]]:
        return [(TRACKER, str(int(name.removeprefix("iteration_"))))]


STEPS = 25

MACHINES: dict[str, tuple[Callable[[Tally, Path], RuleBasedStateMachine], int, float]] = {
    "`rank_N/`": (LegacyTraining, 10, 0.2),
    "`iteration_*/`": (NewerTraining, 6, 0.3),
}
"""Each with the programmes that a commit tries, and how many of its resolves may have several right answers.

A night tries twenty times as many. A folder of the newer layout holds twice the files, so more of them are strange.
"""


def leniencies(tally: Tally, *, ambiguous: float) -> list[tuple[int, int, float]]:
    """Return what the judge let pass, of how many, and the most that a night may; a commit tries too few for that."""
    return [
        (tally.several, tally.resolves, ambiguous),
        (tally.or_none, tally.resolves, 0.8 * ambiguous),
        (tally.loose, tally.resolves, 0.06),
        (tally.prunes - tally.exact, tally.prunes, 0.3),
        (tally.evidence, tally.prunes, 0.1),
        (tally.careful, tally.resolves, 0.01),
        (tally.kills - tally.killed, tally.kills, 0.3),
    ]


FEW = 5

PLAIN = settings(stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck))


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.0%}".replace("%", " %")


def run(machine: Callable[[], RuleBasedStateMachine], how: settings) -> None:
    run_state_machine_as_test(machine, settings=how)  # type: ignore[arg-type]  # it only calls what it gets


@pytest.mark.parametrize("layout", MACHINES)
def test_after_every_step_the_right_one_is_chosen_and_no_prune_takes_what_is_needed(
    layout: str, programme: Programme, tmp_path: Path
) -> None:
    machine, examples, ambiguous = MACHINES[layout]
    tally, began = Tally(counts_care=programme.nightly), time.monotonic()
    if programme.nightly:
        # CI tries the same with every commit; one night shall not be as the other.
        how = settings(PLAIN, max_examples=20 * examples, derandomize=False, database=None, print_blob=True)
    else:
        how = settings(PLAIN, max_examples=examples)
    run(lambda: machine(tally, tmp_path), how)
    assert tally.pruned > examples // 20, f"hardly anything was pruned: {tally}"
    for part, whole, most in leniencies(tally, ambiguous=ambiguous):
        share = most if programme.nightly else 2 * most
        assert part <= share * whole + FEW, f"too much was accepted: {tally}"
    note = (
        f"{layout}: {tally.programmes:,} programmes, {tally.resolves:,} resolves compared "
        f"({_share(tally.several, tally.resolves)} have several right answers, {_share(tally.or_none, tally.resolves)} "
        f"with “nothing” among them, {_share(tally.loose, tally.resolves)} cannot be compared; "
        f"{tally.careful} times too careful, never too bold), "
        f"{tally.prunes:,} prunes that took {tally.pruned:,} checkpoints "
        f"({_share(tally.exact, tally.prunes)} with one right answer; {tally.evidence} kept as evidence; "
        f"{tally.killed} of {tally.kills} killed on the way)"
    )
    seconds = round(time.monotonic() - began, 1)
    programme.report("model", Figure(tried=tally.steps, unit="steps", seconds=seconds, note=note))
