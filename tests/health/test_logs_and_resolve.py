"""`resolve` and `launch` where training logs have a say."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, TESTS
from tests.support.commands import MODULE, Said, ask
from tests.support.training_logs import calm, spike, write_log
from tests.support.trees import TreeBuilder

LOG = "output/log/rank_0/info.log"


def tree(here: Path, steps: tuple[int, ...] = (50, 100, 150, 200, 220, 250, 300), ranks: int = 2) -> TreeBuilder:
    builder = TreeBuilder(here).legacy(ranks=ranks)
    for step in steps:
        builder.save(epoch=step // 2, step=2)
    return builder


def chosen(said: Said) -> tuple[object, object]:
    """Name and data position; None where nothing was chosen."""
    resume, data = said.json["resume"], said.json["data"]
    if not isinstance(resume, dict) or not isinstance(data, dict):
        return None, None
    return resume["name"], data["data_skip_steps"]


def resolved(*options: str) -> Said:
    return ask("resolve", *options, "--format", "json")


def codes(said: Said, name: str) -> set[str]:
    rejected = said.json["rejected"]
    assert isinstance(rejected, list)
    return {reason["code"] for one in rejected if one["name"] == name for reason in one["reasons"]}


def test_the_log_s_judgement_counts_more_than_the_record(here: Path) -> None:
    builder = tree(here)
    builder.health([("llama2_7b_rank_0-150_2.ckpt", 0), ("llama2_7b_rank_0-125_2.ckpt", 1)])
    write_log(here / LOG, range(1, 301), embeddings={300: 300.0, 250: 100.0})
    assert chosen(resolved())[0] == "150_2"
    said = resolved("--health-threshold", "270")
    assert chosen(said)[0] == "125_2"
    assert codes(said, "150_2") == {"norm-above-threshold"}
    assert chosen(resolved("--health-threshold", "300.1"))[0] == "150_2"
    assert chosen(resolved("--health-threshold", "270", "--ignore-health"))[0] == "150_2"


def test_it_is_the_judgement_of_health(here: Path) -> None:
    tree(here)
    write_log(here / LOG, range(1, 301), embeddings={step: float(step) for step in range(1, 301)})
    for threshold in ("120", "290"):
        judged = ask("health", "--threshold", threshold, "--format", "json").json["newest_healthy"]
        assert chosen(resolved("--health-threshold", threshold))[0] == judged


def test_a_log_that_goes_on_behind_the_checkpoint_says_how_far_the_training_came(here: Path) -> None:
    tree(here)
    write_log(here / LOG, range(1, 314), embeddings={300: 1.0})
    said = ask("resolve", "--health-threshold", "270")
    assert said.code == 0
    assert "150_2 is from step 300, and the log continues to step 313: the steps in between" in " ".join(
        said.stdout.split()
    )
    write_log(here / LOG, range(1, 301), embeddings={300: 1.0})
    assert "the log continues" not in ask("resolve", "--health-threshold", "270").stdout


def test_a_threshold_that_could_not_be_applied_is_said(here: Path) -> None:
    tree(here)
    said = ask("resolve", "--health-threshold", "270")
    assert said.code == 14
    assert "the log is missing, so the threshold could not be applied" in " ".join(said.stdout.split())
    assert "no training log was found near the checkpoints" in " ".join(said.stdout.split())


@pytest.mark.parametrize("command", ["resolve", "preflight"])
def test_14_where_the_log_shows_no_norm_to_apply_the_threshold_to(command: str, here: Path) -> None:
    tree = str(FIXTURES / "layouts" / "hf_single")
    (here / "bare.csv").write_text("step,loss\n4,1.0\n8,1.0\n12,1.0\n")
    (here / "full.csv").write_text("step,loss,embedding_local_norm\n4,1.0,0.5\n8,1.0,0.5\n12,1.0,0.5\n")
    asked = (command, tree, "--health-threshold", "1", "--log")
    said = ask(*asked, "bare.csv")
    assert said.code == 14
    assert "so the threshold could not be applied" in " ".join(said.stdout.split())
    assert ask(*asked, "bare.csv", "--allow-unknown-health").code == 0
    assert ask(*asked, "bare.csv", "--ignore-health").code == 0
    assert ask(*asked, "full.csv").code == 0


@pytest.mark.parametrize("option", [["--health-threshold", "270", "--log"], ["--health-timeline"]])
def test_14_where_a_log_that_was_to_have_a_say_shows_no_step(option: list[str], here: Path) -> None:
    tree(here, ranks=4)
    (here / "no.csv").write_text("step,global_norm\n" if option == ["--health-timeline"] else "")
    (here / "base.yaml").write_text((FIXTURES / "configs" / "pretrain_sink2.yaml").read_text())
    said = ask("resolve", *option, "no.csv")
    assert said.code == 14
    assert "no.csv: no step was found in the log, so the question cannot be answered" in " ".join(said.stdout.split())
    launched = ask("launch", "--config", "base.yaml", "--output", "new.yaml", *option, "no.csv")
    assert launched.code == 14
    assert not (here / "new.yaml").exists()


def test_14_where_a_log_is_cut_short_after_many_lines_that_cannot_be_read(here: Path) -> None:
    tree(here)
    for bad in (4, 99):
        rows = "".join(f"{step},{'x' if step <= bad else 0.3}\n" for step in range(1, 301))
        (here / "cut.gz").write_bytes(gzip.compress(f"step,global_norm\n{rows}".encode())[:-8])
        assert ask("resolve", "--health-timeline", "cut.gz").code == 14


def test_a_log_that_does_not_reach_the_checkpoint_leaves_its_health_unknown(here: Path) -> None:
    tree(here)
    write_log(here / "other.log", range(1, 50))
    assert ask("resolve", "--health-threshold", "270", "--log", "other.log").code == 14
    assert ask("resolve", "--health-threshold", "270", "--log", "other.log", "--require-health").code == 11


def test_what_replay_printed_without_any_stretch_has_been_heard(here: Path) -> None:
    tree(here)
    write_log(here / "calm.log", range(1, 301))
    (here / "replay.json").write_text(ask("replay", "calm.log", "--format", "json").stdout)
    (here / "empty.log").touch()
    assert ask("resolve", "--health-timeline", "replay.json").code == 0
    assert ask("resolve", "--health-timeline", "empty.log").code == 14


def test_a_pipe_that_nobody_writes_to_cannot_be_read(here: Path) -> None:
    tree(here)
    os.mkfifo(here / "pipe")
    for option in (["--health-threshold", "270", "--log"], ["--health-timeline"]):
        said = ask("resolve", *option, "pipe")
        assert said.code == 14
        assert "log-unreadable pipe: cannot be read: this pipe is empty" in " ".join(said.stdout.split())


def test_a_pipe_that_a_shell_makes_is_read(here: Path) -> None:
    tree(here)
    write_log(here / "whole.log", range(1, 301), embeddings={300: 300.0, 250: 100.0})
    line = f"{shlex.join(MODULE)} resolve --health-threshold 270 --format json --log <(sleep 0.2; cat whole.log)"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resume"]["name"] == "125_2"


def test_checkpoints_saved_in_a_spike_are_passed_over_until_it_recovered(here: Path) -> None:
    tree(here, (200, 220, 250))
    write_log(here / LOG, range(1, 301), norms=spike(215, 260))
    said = resolved("--health-timeline", LOG)
    assert chosen(said) == ("100_2", 200)
    assert codes(said, "125_2") == codes(said, "110_2") == {"saved-in-spike"}
    write_log(here / LOG, range(1, 301), norms=spike(215, 249))
    assert chosen(resolved("--health-timeline", LOG))[0] == "125_2"
    write_log(here / LOG, range(1, 301), norms=spike(215, 260))
    assert chosen(resolved("--health-timeline", LOG, "--spike-threshold", "60"))[0] == "125_2"
    assert chosen(resolved("--health-timeline", LOG, "--ignore-health"))[0] == "125_2"


def test_a_spike_of_one_run_is_held_against_its_own_checkpoints_alone(here: Path) -> None:
    """The first run had a spike from step 215 on that never ended; the second one went on from 200 without one."""
    builder = tree(here, (150, 200, 220, 250))
    for step in (220, 250, 280):
        builder.save(epoch=step // 2, step=2, run=1)
    first = write_log(here / "first.log", range(1, 261), norms=spike(215, 260))
    second = write_log(here / "second.log", range(201, 301), norms={step: calm(step + 1) for step in range(201, 301)})
    (here / LOG).parent.mkdir(parents=True)
    (here / LOG).write_text(first.read_text() + second.read_text())
    marks = {
        "75_2": "clear", "100_2": "clear", "110_2": "suspect", "125_2": "suspect",
        "_1-110_2": "clear", "_1-125_2": "clear", "_1-140_2": "clear",
    }  # fmt: skip
    policy = ["--policy", "zscore", "--format", "json"]
    for logs in ([LOG], ["first.log", "second.log"]):
        said = ask("replay", *logs, *policy, "--health-timeline", "output")
        assert {one["name"]: one["state"] for one in said.json["checkpoints"]} == marks
    assert chosen(resolved("--health-timeline", LOG))[0] == "_1-140_2"
    for path in (here / "output/checkpoint").glob("rank_*/*_rank_?_1-*"):
        path.unlink()
    said = resolved("--health-timeline", LOG)
    assert chosen(said)[0] == "100_2"
    assert codes(said, "125_2") == codes(said, "110_2") == {"saved-in-spike"}


def test_what_replay_printed_is_taken_as_evidence(here: Path) -> None:
    tree(here, (200, 220, 250))
    write_log(here / LOG, range(1, 301), norms=spike(215, 260))
    printed = ask("replay", LOG, "--policy", "zscore", "--format", "json").stdout
    (here / "timeline.json").write_text(printed)
    assert chosen(resolved("--health-timeline", "timeline.json"))[0] == "100_2"
    (here / "timeline.json").write_text(printed.replace('"spike"', '"spyke"'))
    broken = ask("resolve", "--health-timeline", "timeline.json")
    assert (broken.code, broken.stdout) == (2, "")
    assert "expected the output of ckpttool log replay --format json" in broken.stderr


def strike_log(here: Path, *times: str) -> None:
    line = (
        "[Event][2025-03-01 {}:00] [Rank 1]: A grad-norm spike may happen, param name layer_backward, abnormal value "
        "1e12, previous value 1.0, history avg 0.1, bp time 412, normal count 400."
    )
    (here / "asd.log").write_text("".join(line.format(time) + "\n" for time in times))


def test_what_was_saved_since_the_first_event_of_a_strike_is_passed_over(here: Path) -> None:
    tree(here, (60, 120, 180, 240))  # at 09:00, 10:00, 11:00 and 12:00 by the log
    write_log(here / LOG, range(1, 301))
    strike_log(here, "10:30", "11:30", "12:30")
    said = resolved("--health-timeline", "asd.log", "--log", LOG)
    assert chosen(said)[0] == "60_2"
    assert codes(said, "90_2") == codes(said, "120_2") == {"saved-after-strike"}
    assert chosen(resolved("--health-timeline", "asd.log", "--log", LOG, "--margin", "40"))[0] == "30_2"
    strike_log(here, "10:30", "11:30")
    assert chosen(resolved("--health-timeline", "asd.log", "--log", LOG))[0] == "120_2"


def test_a_strike_in_a_saved_timeline_is_told_by_its_time(here: Path) -> None:
    tree(here, (60, 120, 180, 240))
    write_log(here / LOG, range(1, 301))
    strike_log(here, "10:30", "11:30", "12:30")
    (here / "timeline.json").write_text(ask("replay", "asd.log", "--policy", "features", "--format", "json").stdout)
    assert chosen(resolved("--health-timeline", "timeline.json", "--log", LOG))[0] == "60_2"


def advice(said: Said) -> dict[str, object]:
    found = said.json["advice"]
    assert isinstance(found, dict)
    return found


def test_a_spike_that_lasts_is_gone_around_and_its_data_skipped(here: Path) -> None:
    tree(here)
    write_log(here / LOG, range(1, 301), norms=spike(215, 289))
    said = resolved("--around-spike", "last")
    assert chosen(said) == ("50_2", 300)
    assert (advice(said)["choice"], advice(said)["onset"], advice(said)["end"]) == ("rewind", 215, 290)
    assert isinstance(said.json["data"], dict)
    assert (said.json["data"]["next_step"], said.json["data"]["ignore_data_skip"]) == (101, False)
    assert codes(said, "75_2") == {"rewound-past"}
    assert "Go back and skip the bad data" in ask("resolve", "--around-spike", "last").stdout


def test_a_short_spike_is_left_alone_and_both_ways_are_told_with_their_costs(here: Path) -> None:
    tree(here)
    write_log(here / LOG, range(1, 301), norms=spike(215, 224))
    said = resolved("--around-spike", "last")
    assert chosen(said) == ("150_2", 300)
    assert (advice(said)["choice"], advice(said)["wait_cost"], advice(said)["rewind_cost"]) == ("wait", 10, 200)
    table = ask("resolve", "--around-spike", "217").stdout
    assert "Do nothing" in table
    assert "--iterations-to-skip $(seq 101 300)" in table


def test_where_nothing_lies_far_enough_back_the_newest_before_the_spike_is_what_is_left(here: Path) -> None:
    tree(here, (150, 200, 250))
    write_log(here / LOG, range(1, 301), norms=spike(215, 300))
    said = resolved("--around-spike", "last")
    assert chosen(said) == ("100_2", 200)
    assert (advice(said)["choice"], advice(said)["detour"]) == ("none", None)


def test_after_a_stop_the_newest_is_resumed_and_the_bad_data_are_passed(here: Path) -> None:
    tree(here)
    write_log(here / LOG, range(1, 303), norms=spike(300, 302), stop=302)
    said = resolved("--around-spike", "last")
    assert chosen(said) == ("150_2", 302)
    assert (advice(said)["kind"], advice(said)["stop"]) == ("stop", 302)
    plain = resolved()
    assert chosen(plain) == ("150_2", 300)
    assert "advice" not in plain.json


def test_a_stop_with_nothing_left_to_load_is_told(here: Path) -> None:
    builder = tree(here, (50,))
    builder.remove(builder.shard(0, 25, 2))
    write_log(here / LOG, range(1, 303), norms=spike(300, 302), stop=302)
    said = ask("resolve", "--around-spike", "last")
    assert said.code == 11
    assert "Training stopped at step 302, and there is no good checkpoint" in " ".join(said.stdout.split())


def test_what_is_later_than_a_step_is_not_chosen(here: Path) -> None:
    tree(here, (100, 200, 300))
    assert chosen(resolved("--before", "299", "--strict"))[0] == "100_2"
    said = ask("resolve", "--before", "99")
    assert said.code == 11
    assert "no checkpoint is at or before step 99: the first is 50_2, at step 100" in " ".join(said.stdout.split())


def test_launch_goes_around_the_spike_too(here: Path) -> None:
    tree(here, ranks=4)
    write_log(here / LOG, range(1, 301), norms=spike(215, 289))
    config = (TESTS / "configs" / "llama2_legacy.yaml").read_text()
    (here / "base.yaml").write_text(config.replace("_parallel: 2", "_parallel: 1").replace("_stage: 2", "_stage: 1"))
    said = ask("launch", "--config", "base.yaml", "--output", "new.yaml", "--around-spike", "last")
    assert said.code == 0
    assert "note data-end-early" in said.stdout
    assert "MindFormers plans 19400 more steps, but the data is enough for 19200" in " ".join(said.stdout.split())
    written = (here / "new.yaml").read_text()
    assert "resume_training: llama2_7b_rank_0-50_2.ckpt" in written
    assert "data_skip_steps: " in written
    assert "data_skip_steps: 100\n" not in written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--columns", "step=iter"], "--log needs --health-threshold"),
        (["--spike-threshold", "3"], "--spike-threshold needs --spikes-from or --around-spike"),
        (["--spike-threshold", "3", "--health-threshold", "3"], "--spike-threshold needs --spikes-from"),
        (["--margin", "3"], "--margin needs --spikes-from"),
        (["--margin", "3", "--health-threshold", "3"], "--margin needs --spikes-from"),
        (["--require-health", "--ignore-health"], "--require-health and --ignore-health cannot be used together"),
        (["--new-dataset", "--dataset-changed-at", "0"], "--new-dataset and --dataset-changed-at"),
        (["--around-spike", "soon"], "takes a step or the word last, not 'soon'"),
        (["--health-timeline", "absent.log"], "no log matches 'absent.log'"),
        (["--around-spike", "last"], "no training log was found near the checkpoints: give --log"),
    ],
)
def test_a_question_that_cannot_be_meant_is_one_line(options: list[str], words: str, here: Path) -> None:
    tree(here)
    said = ask("resolve", *options)
    assert (said.code, said.stdout) == (2, "")
    assert words in said.stderr


def test_a_spike_after_which_the_loss_stays_high_is_no_ordinary_one(here: Path) -> None:
    tree(here, steps=(50, 200, 260, 300))

    def log(name: str, loss_since: float, last: int = 300) -> str:
        rows = ["step,loss,grad_norm"]
        for step in range(1, last + 1):
            is_spike = 251 <= step <= 256
            usual = 1.96 if step <= 250 else loss_since
            loss = (2.02 if is_spike else usual) + (calm(step) - 0.3)
            rows.append(f"{step},{loss:.4f},{2.5 if is_spike else calm(step):.4f}")
        (here / name).write_text("\n".join(rows) + "\n")
        return name

    def advice(*command: str) -> dict[str, object]:
        columns = ("--columns", "step=step,loss=loss,global_norm=grad_norm", "--format", "json")
        found = ask(*command, "--around-spike", "last", *columns).json["advice"]
        assert isinstance(found, dict)
        return found

    for name, loss_since, last, choice, words in (
        ("off.csv", 1.975, 300, "rewind", "the loss has not recovered: its median over the last 44 steps is 1.97"),
        ("well.csv", 1.96, 300, "wait", "an ordinary spike; the loss has recovered too"),
        (
            "early.csv",
            1.975,
            270,
            "wait",
            "whether the loss has recovered too is unknown: the log has 64 losses before it",
        ),
    ):
        log(name, loss_since, last)
        for command in (("resolve", "--log", name), ("replay", name, "--tree", "output", "--policy", "zscore")):
            told = advice(*command)
            assert (told["choice"], words in str(told["reason"])) == (choice, True), told
    assert advice("resolve", "--log", "off.csv")["wait_cost"] is None


def test_a_log_too_short_to_judge_a_checkpoint_by_leaves_its_health_unknown(here: Path) -> None:
    tree(here, steps=(30, 42))
    norms = dict.fromkeys(range(40, 45), 900.0)
    write_log(here / "short.log", range(1, 51), norms=norms)
    said = ask("resolve", "--spikes-from", "short.log")
    assert said.code == 14
    assert "unknown health-unknown 21_2: whether it was saved in a spike is unknown" in " ".join(said.stdout.split())
    assert ask("resolve", "--spikes-from", "short.log", "--allow-unknown-health").code == 0
    assert ask("resolve", "--around-spike", "last", "--log", "short.log").code == 14
    assert chosen(resolved("--spikes-from", "short.log", "--spike-threshold", "3"))[0] == "15_2"

    saved = here / "replay.json"
    saved.write_text(ask("replay", "short.log", "--policy", "zscore", "--format", "json").stdout)
    assert ask("resolve", "--spikes-from", "replay.json").code == 14

    write_log(here / "long.log", range(1, 131))
    tree(here, steps=(130,))
    saved.write_text(ask("replay", "long.log", "--policy", "zscore", "--format", "json").stdout)
    for log in ("long.log", "replay.json"):
        said = resolved("--spikes-from", log)
        assert (said.code, chosen(said)[0]) == (0, "65_2")


@pytest.mark.parametrize("command", [("resolve",), ("replay", "odd.log", "--every", "10")])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"step,loss\n", "odd.log: no training step was found; whether there was a spike is unknown"),
        (b"\x1f\x8bno gzip", "; whether there was a spike is unknown"),
    ],
)
def test_a_log_that_cannot_be_read_does_not_show_that_there_was_no_spike(
    command: tuple[str, ...], content: bytes, words: str, here: Path
) -> None:
    tree(here)
    (here / "odd.log").write_bytes(content)
    log = ["--log", "odd.log"] if command == ("resolve",) else []
    said = ask(*command, "--around-spike", "last", *log)
    assert (said.code, said.stdout) == (14, "")
    assert words in said.stderr


def test_a_log_that_cannot_be_read_to_its_end_decides_nothing_and_is_no_reason_to_launch(here: Path) -> None:
    tree(here, ranks=4)
    whole = gzip.compress(write_log(here / "whole.log", range(1, 301), embeddings={300: 1.0}).read_bytes())
    (here / "whole.log.gz").write_bytes(whole)
    (here / "cut.log.gz").write_bytes(whole[:-20])
    (here / "base.yaml").write_bytes((FIXTURES / "configs/pretrain_sink2.yaml").read_bytes())
    for log, code in (("whole.log.gz", 0), ("cut.log.gz", 14)):
        evidence = ("--health-threshold", "270", "--log", log)
        assert resolved(*evidence).code == code
        said = ask("launch", "--config", "base.yaml", "--output", f"{log}.yaml", *evidence)
        assert (said.code, (here / f"{log}.yaml").exists()) == (code, code == 0)


class TestAStopOfWhichOnlySkippedStepsTell:
    """`info.log` lacks the line of the stop: the exception goes by the logger, and only the launcher catches it."""

    def logged(self, here: Path, last: int = 300) -> None:
        norms = spike(295, 300)
        write_log(here / LOG, range(1, last + 1), norms=norms, stop=300, in_a_row=6, tells_stop=False)

    def test_the_data_behind_them_are_next_and_it_is_said_that_they_were_skipped(self, here: Path) -> None:
        tree(here)
        self.logged(here)
        said = resolved("--around-spike", "last")
        assert (said.code, chosen(said)) == (0, ("150_2", 300))
        table = " ".join(ask("resolve", "--around-spike", "last").stdout.split())
        assert "Resume after the stop at step 300" in table
        assert "skipped steps 295 to 300, whose updates changed no weight" in table
        assert chosen(resolved("--around-spike", "297")) == ("150_2", 300)

    def test_where_the_training_went_on_there_is_no_stop_and_the_skipped_steps_are_told(self, here: Path) -> None:
        tree(here)
        self.logged(here, last=320)
        said = ask("resolve", "--around-spike", "last", "--spike-threshold", "3")
        assert said.code != 0
        assert "skipped 6 steps, 295 to 300, whose updates changed no weight" in " ".join(said.stderr.split())
