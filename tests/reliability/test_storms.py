"""Many processes change one tree at one moment, and some of them are killed: no update is lost, nothing is torn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from ckpttool.core.errors import ExitCode
from tests.reliability.crowd import Crowd, End, Job
from tests.reliability.figures import Figure, Programme
from tests.reliability.saving import (
    CHANGED,
    FOREVER,
    KEPT,
    RANKS,
    Answer,
    Pruning,
    Training,
    Truth,
    asked,
    shard_path,
    wrong_prune,
)
from tests.reliability.storm_scene import Scene, Task, Watch

KILLED = 11
"""Of 32."""
MOST_REFUSED = 0.5
"""Of all that were not killed: somebody must have got through for an update to be lost."""
MOST_CHANGED = 0.3
"""Of the readers' answers: those that say “changed meanwhile” are right and no use."""
AGAIN = 3
"""Times that those are tried that were refused, as they may be where the disk stalls for longer than they wait."""


def test_a_storm_of_writers_loses_no_update(tmp_path: Path, programme: Programme) -> None:
    started = time.monotonic()
    rounds = 40 if programme.nightly else 4
    chance = Random(26)  # noqa: S311  the same storm for the same seed, as far as the kernel lets it
    wrong: list[str] = []
    tried = killed = locked = reads = 0
    span = 1.0
    cache = tmp_path / "cache"
    with closing(Crowd(tmp_path / "printed", {"XDG_CACHE_HOME": str(cache)})) as crowd:
        for number in range(rounds):
            scene = Scene(tmp_path / str(number), cache, chance)
            tasks = scene.tasks_without_health() if number % 2 else scene.tasks()
            jobs = storm(tasks, chance, span=span)
            watch = Watch(scene=scene)
            with watch:
                ends = crowd.run(jobs)
            span = min(1.0, max(end.seconds for end in ends))
            dead = sum(end.killed for end in ends)
            wrong += [f"storm {number}: {what}" for what in (*scene.wrong(tasks, ends), *watch.wrong)]
            wrong += [f"after storm {number}: {what}" for what in calm(scene, crowd, killed=dead)]
            tried += len(ends)
            killed += dead
            locked += sum(end.code == ExitCode.LOCKED for end in ends)
            reads += watch.done
    assert not wrong, f"{len(wrong)} wrong: {wrong[:5]}"
    assert killed, "nobody was killed, so half of the question was not asked"
    assert locked <= MOST_REFUSED * (tried - killed), f"{locked} of {tried} were refused, {killed} killed"
    programme.report(
        "writers",
        Figure(
            tried=tried,
            unit="processes",
            seconds=round(time.monotonic() - started, 1),
            note=f"32 at once in one tree, {killed:,} killed at a random moment, {locked:,} refused "
            f"(exit {ExitCode.LOCKED:d}); 0 updates lost; read {reads:,} times meanwhile, never torn",
        ),
    )


def storm(tasks: Sequence[Task], chance: Random, *, span: float) -> list[Job]:
    """Let some be killed at random moments. Those that wait for no lock come one by one."""
    doomed = set(chance.sample(range(len(tasks)), KILLED))
    return [
        Job(
            task.argv,
            kill_after=chance.uniform(0.1 * span, span) if index in doomed else None,
            start_after=chance.uniform(0, span) if task.what in {"prune", "repair"} else 0,
        )
        for index, task in enumerate(tasks)
    ]


def calm(scene: Scene, crowd: Crowd, *, killed: int) -> list[str]:
    """Do what was not done, the changes one by one and then the rest: nothing that the storm left is in the way."""
    left = scene.temporaries()
    wrong = [f"{len(left)} temporary files of {killed} killed: {left[:4]}"] if len(left) > 2 * killed else []
    for task in scene.change_tasks():
        end = crowd.run([Job(task.argv)])[0]
        wrong += [f"{task.what}: exit {end.code}: {end.told}"] if end.code or not scene.has(task) else []
    for _ in range(AGAIN):
        missing = [task for task in scene.tasks() if not scene.has(task)]
        ends = crowd.run([Job(task.argv) for task in missing])
        wrong += scene.wrong(missing, ends)
        if all(end.code == 0 for end in ends):
            break
    wrong += [f"{task.what} {task.epoch} is never done" for task in scene.tasks() if not scene.has(task)]
    own = scene.root / ".ckpttool"
    wrong += [f"{path.name} is left" for path in (own / "prune.json", *own.glob("trash/*")) if path.exists()]
    end = every_byte(scene, crowd)
    return [*wrong, *([f"verify: exit {end.code}: {end.stdout}"] if end.code else [])]


def every_byte(scene: Scene, crowd: Crowd) -> End:
    """Compare every shard with its manifest, where it has one, and with its own checksum."""
    level = ("--level", "checksum", "--no-ledger")
    return crowd.run([Job(("verify", str(scene.root), "--checkpoint", "all", *level, "-q"))])[0]


def test_a_manifest_of_other_bytes_is_seen_after_a_storm(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tmp_path / "cache", Random(1))  # noqa: S311  as above
    sealing = scene.seal_tasks()[0]
    with closing(Crowd(tmp_path / "printed", {"XDG_CACHE_HOME": str(tmp_path / "cache")})) as crowd:
        crowd.run([Job(sealing.argv)])
        assert every_byte(scene, crowd).code == ExitCode.OK
        scene.save(sealing.epoch, seed=1)  # with a checksum of its own that is right
        told = every_byte(scene, crowd)
    assert told.code == ExitCode.DAMAGE
    assert "checksum-mismatch" in told.stdout


def test_without_locks_updates_are_lost_and_it_is_seen(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tmp_path / "cache", Random(1))  # noqa: S311  as above
    tasks = [*scene.health_tasks(), *scene.verify_tasks()]
    with closing(Crowd(tmp_path / "printed", {"XDG_CACHE_HOME": str(tmp_path / "cache")})) as crowd:
        ends = crowd.run([Job(task.argv) for task in tasks], unlocked=True)
    lost = [what for what in scene.wrong(tasks, ends) if what.endswith("is lost")]
    assert {what.split()[0] for what in lost} == {"health", "verify"}


def test_readers_beside_a_training_and_a_prune_raise_no_false_alarm(tmp_path: Path, programme: Programme) -> None:
    started = time.monotonic()
    root, truth = tmp_path / "output/checkpoint", Truth()
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    training = Training(root=root, truth=truth)
    for _ in range(KEPT):
        training.save(grows=False, slowly=False)
    rounds, prunes = (600, 20) if programme.nightly else (50, 3)
    answers: list[Answer] = []
    with closing(Crowd(tmp_path / "r", env)) as readers, closing(Crowd(tmp_path / "p", env)) as pruners:
        pruning = Pruning(root=root, truth=truth, crowd=pruners)
        with training, pruning:
            while len(answers) < 4 * rounds or (pruning.applied < prunes and len(answers) < 40 * rounds):
                answers += asked(root, readers)
                if training.wrong or pruning.wrong:
                    break
    wrong = [*training.wrong, *pruning.wrong, *(what for answer in answers for what in answer.wrong(truth))]
    assert not wrong, f"{len(wrong)} wrong: {wrong[:5]}"
    assert training.done > KEPT + 1
    assert pruning.applied >= prunes
    unstable = sum(answer.end.code == CHANGED for answer in answers)
    assert unstable <= MOST_CHANGED * len(answers), f"{unstable} of {len(answers)} answers were no use"
    programme.report(
        "readers",
        Figure(
            tried=len(answers) // 4,
            unit="rounds of readers",
            seconds=round(time.monotonic() - started, 1),
            note=f"`scan`, `verify` at both levels and `resolve` at once, during {training.done - KEPT:,} saves and "
            f"{pruning.applied:,} prunes; {unstable:,} of {len(answers):,} answers were “changed meanwhile”",
        ),
    )


def test_a_reader_that_answers_what_is_not_so_is_seen(tmp_path: Path) -> None:
    root, truth = tmp_path / "output/checkpoint", Truth()
    training = Training(root=root, truth=truth)
    for _ in range(KEPT):
        training.save(grows=False, slowly=False)
    newest = shard_path(1, 5 * KEPT)
    with closing(Crowd(tmp_path / "r", {"XDG_CACHE_HOME": str(tmp_path / "cache")})) as readers:
        truth.shards[newest].ready = truth.shards[newest].whole = FOREVER
        never_whole = [what for answer in asked(root, readers) for what in answer.wrong(truth)]
        truth.shards[newest].whole = 0.0
        (root / newest).chmod(0o600)
        os.truncate(root / newest, 100)
        not_torn = [what for answer in asked(root, readers) for what in answer.wrong(truth)]
        (root / newest).unlink()
        not_gone = [what for answer in asked(root, readers) for what in answer.wrong(truth)]
    called = [f"15_2 is not whole or not there, and called {verdict}" for verdict in ("struct-ok", "verified")]
    assert never_whole == ["resolve takes 15_2, which is not whole or not there", *called]
    for wrong in (not_torn, not_gone):
        assert "resolve takes 10_2 and passes over 15_2, which is whole" in wrong
        assert any("whole and called" in what for what in wrong)
        assert any("false damage" in what for what in wrong)


def test_a_reader_that_calls_it_damage_and_does_not_say_of_what_is_seen() -> None:
    said = '{"checkpoints": [{"name": "5_2", "verdict": null, "findings": []}]}'
    end = End(job=Job(("verify",)), code=ExitCode.DAMAGE, seconds=0, stdout=said, stderr="")
    wrong = list(Answer(end=end, since=0, until=1).wrong(Truth()))
    assert wrong == ["verify: exit 10, and nothing is said to be wrong"]


def test_a_prune_that_takes_too_much_or_not_all_of_it_is_seen(tmp_path: Path) -> None:
    root, truth = tmp_path / "output/checkpoint", Truth()
    training = Training(root=root, truth=truth)
    for _ in range(KEPT + 2):
        training.save(grows=False, slowly=False)
    for rank in range(RANKS):
        (root / shard_path(rank, 5)).unlink()
        (root / shard_path(rank, 15)).unlink()
    (root / shard_path(2, 10)).unlink()
    now = time.monotonic()
    assert list(wrong_prune({5}, root, truth, now)) == ["prune took 5_2, and of what is newer only [20, 25] is whole"]
    assert next(wrong_prune({10}, root, truth, now)) == "prune took 10_2, but not on ranks [0, 1, 3]"


def test_a_prune_that_leaves_enough_is_right(tmp_path: Path) -> None:
    root, truth = tmp_path / "output/checkpoint", Truth()
    training = Training(root=root, truth=truth)
    for _ in range(KEPT + 1):
        training.save(grows=False, slowly=False)
    for rank in range(RANKS):
        (root / shard_path(rank, 5)).unlink()
    assert list(wrong_prune({5}, root, truth, time.monotonic())) == []
