"""`ckpttool replay`: what a policy would have done, and what follows for checkpoints and data."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask, run
from tests.support.training_logs import spike, write_log
from tests.support.trees import TreeBuilder

LOGS = FIXTURES / "logs"
FORMATS = {"table": "txt", "json": "json"}
BLOOM = str(LOGS / "bloom176b_chronicles.log")


def replayed(*arguments: str) -> Said:
    return ask("replay", *arguments, "--format", "json")


def column(here: Path, norms: Sequence[object]) -> str:
    """A log of one column."""
    (here / "norms.csv").write_text("step,global_norm\n" + "".join(f"{i},{n}\n" for i, n in enumerate(norms, 1)))
    return "norms.csv"


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_blooms_spike_comes_out_as_published(form: str, suffix: str, here: Path, golden: Golden) -> None:
    shutil.copy(BLOOM, here / "bloom.log")
    options = ["--threshold", "1.0", "--around-spike", "31216", "--every", "100"]
    said = ask("replay", "bloom.log", *options, "--format", form)
    assert said.code == 0
    golden(f"replay/bloom.{suffix}", said.stdout)


def test_blooms_way_around_the_spike() -> None:
    advice = replayed(BLOOM, "--threshold", "1.0", "--around-spike", "31216", "--every", "100").json["advice"]
    assert (advice["choice"], advice["onset"], advice["end"], advice["wait_cost"]) == ("wait", 31216, 31250, 34)
    detour = advice["detour"]
    assert (detour["checkpoint_step"], detour["skip_batches"]) == (31100, 200)
    assert (detour["samples_before"], detour["samples_after"]) == (47_535_024, 47_944_624)
    assert detour["megatron"] == "--iterations-to-skip $(seq 31101 31300)"
    assert detour["mindformers"] == {"data_skip_steps": 31300, "ignore_data_skip": False}


@pytest.mark.parametrize(
    ("options", "first", "lost", "stopped"),
    [
        (["--threshold", "3.0"], 31217, 6, None),
        (["--threshold", "1.0"], 31216, 7, None),
        (["--threshold", "3.0", "--count", "2"], 31217, 2, 31218),
    ],
)
def test_blooms_replays(options: list[str], first: int, lost: int, stopped: int | None) -> None:
    answer = replayed(BLOOM, *options).json
    assert answer["spans"][0]["first"] == first
    assert (answer["updates_lost"], answer["stopped_at"]) == (lost, stopped)


@pytest.mark.parametrize(
    ("norms", "options", "expected"),
    [
        ([44.3, 47.3], ["--count", "2"], (2, 2)),
        ([2.99, 3.0, 2.99], [], (1, None)),
        ([5, 5, 1, 5, 5], ["--count", "3"], (4, None)),
        ([5, "nan", 5, "nan"], ["--count", "2"], (4, None)),
        ([5, "nan", 5, "nan"], ["--count", "2", "--nan", "strict"], (2, 2)),
        (["inf"], ["--count", "1"], (1, 1)),
    ],
)
def test_the_skip_rule_is_mindformers_own(
    norms: list[object], options: list[str], expected: tuple[int, int | None], here: Path
) -> None:
    answer = replayed(column(here, norms), "--policy", "skip", *options).json
    assert (answer["updates_lost"], answer["stopped_at"]) == expected


def test_three_skips_in_ten_steps_leave_the_learning_rate_at_seven(here: Path) -> None:
    answer = replayed(column(here, [1, 5, 5, 1, 1, 1, 5, 1, 1, 1]), "--policy", "skip").json
    assert (answer["last_step"], answer["learning_rate_index"]) == (10, 7)


def test_after_the_first_skip_the_log_is_only_an_observation(here: Path) -> None:
    said = ask("replay", column(here, [1, 5, 1]), "--policy", "skip")
    assert "from step 2 on the log is only an observation" in " ".join(said.stdout.split())
    assert "observation" not in ask("replay", column(here, [1, 2, 1]), "--policy", "skip").stdout


def test_steps_that_are_not_shown_leave_a_stop_undecided() -> None:
    assert "cannot be decided" in " ".join(ask("replay", BLOOM).stdout.split())


@pytest.mark.parametrize("policy", ["skip", "zscore", "zclip", "olmo", "features"])
def test_every_policy_is_quiet_on_a_quiet_log(policy: str, here: Path) -> None:
    write_log(here / "quiet.log", range(1, 301))
    said = replayed("quiet.log", "--policy", policy)
    assert (said.code, said.json["events"], said.json["timeline"]) == (0, [], [])


@pytest.mark.parametrize("policy", ["skip", "zscore", "zclip"])
def test_every_policy_sees_a_spike(policy: str, here: Path) -> None:
    write_log(here / "spike.log", range(1, 301), norms=spike(200, 203))
    timeline = replayed("spike.log", "--policy", policy).json["timeline"]
    assert timeline[0]["first_step"] == 200


def test_a_threshold_means_standard_deviations_to_the_robust_ones(here: Path) -> None:
    write_log(here / "spike.log", range(1, 301), norms=spike(200, 200, height=0.4))
    assert replayed("spike.log", "--policy", "zscore").json["events"] != []
    assert replayed("spike.log", "--policy", "zscore", "--threshold", "90").json["events"] == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dialect", ["torch_npu", "mindspore", "mindformers"])
def test_a_detectors_own_log_is_the_golden_one(dialect: str, form: str, here: Path, golden: Golden) -> None:
    shutil.copy(LOGS / f"asd_{dialect}_made.log", here / "asd.log")
    said = ask("replay", "asd.log", "--policy", "features", "--dialect", dialect, "--format", form)
    assert said.code == 0
    golden(f"replay/{dialect}.{FORMATS[form]}", said.stdout)


def events_at(here: Path, *times: str) -> str:
    """A detector's log with an event at each time."""
    line = (
        "[Event][2025-03-01 {}:00] [Rank 3]: A grad-norm spike may happen, param name layer_backward, abnormal value "
        "1e12, previous value 1.0, history avg 0.1, bp time 412, normal count 400."
    )
    (here / "asd.log").write_text("".join(line.format(time) + "\n" for time in times))
    return "asd.log"


def hourly(here: Path) -> None:
    """A checkpoint every hour from 08:00 to 16:00, and the log that tells their times."""
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    for hour in range(9):
        builder.save(epoch=30 * hour + 1, step=2, true_step=60 * hour + 1)
    write_log(here / "train.log", range(1, 500))


def states(said: Said) -> list[str]:
    marks = said.json["checkpoints"]
    return [mark["state"] for mark in marks]


def test_a_strike_makes_all_suspect_since_its_first_event_and_not_only_the_last(here: Path) -> None:
    hourly(here)
    log = events_at(here, "09:10", "12:20", "15:50")
    options = ["train.log", "--policy", "features", "--health-timeline", "output"]
    assert states(replayed(log, *options)) == ["clear"] * 2 + ["suspect"] * 7
    earlier = [*options, "--margin", "60"]
    assert states(replayed(log, *earlier)) == ["clear"] * 1 + ["suspect"] * 8


def test_events_without_a_strike_leave_every_checkpoint_alone(here: Path) -> None:
    hourly(here)
    log = events_at(here, "07:40", "12:20", "15:50")
    said = replayed(log, "train.log", "--policy", "features", "--health-timeline", "output")
    assert states(said) == ["clear"] * 9
    wider = replayed(
        log, "train.log", "--policy", "features", "--asd-config", "strikes_window:490", "--health-timeline", "output"
    )
    assert "suspect" in states(wider)


def test_without_a_training_log_the_time_of_the_files_tells(here: Path) -> None:
    hourly(here)
    log = events_at(here, "09:10", "12:20", "15:50")
    assert states(replayed(log, "--policy", "features", "--health-timeline", "output")) == ["clear"] * 9


def test_checkpoints_saved_in_a_spike_are_suspect_until_it_recovered(here: Path) -> None:
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    for step in (198, 200, 204, 206):
        builder.save(epoch=step // 2, step=2)
    write_log(here / "train.log", range(1, 301), norms=spike(200, 205))
    said = replayed("train.log", "--policy", "zscore", "--health-timeline", "output")
    assert states(said) == ["clear", "suspect", "suspect", "clear"]
    assert "2 of 4 clear" in ask("replay", "train.log", "--policy", "zscore", "--health-timeline", "output").stdout


def test_what_the_trainer_itself_skipped_harmed_no_checkpoint(here: Path) -> None:
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    builder.save(epoch=101, step=2)
    norms = spike(200, 202)
    write_log(here / "applied.log", range(1, 203), norms=norms)
    write_log(here / "skipped.log", range(1, 203), norms=norms, stop=202)
    options = ["--policy", "zscore", "--health-timeline", "output"]
    assert states(replayed("applied.log", *options)) == ["suspect"]
    assert states(replayed("skipped.log", *options)) == ["clear"]


def test_a_level_that_stays_up_has_not_recovered(here: Path) -> None:
    write_log(here / "train.log", range(1, 401), norms=spike(200, 400))
    timeline = replayed("train.log", "--policy", "zscore").json["timeline"]
    assert [(one["first_step"], one["recovered_step"]) for one in timeline] == [(200, None)]


def test_on_after_a_stop_that_the_log_tells(here: Path) -> None:
    write_log(here / "train.log", range(1, 303), norms=spike(300, 302), stop=302)
    advice = replayed("train.log", "--policy", "zscore", "--around-spike", "last", "--every", "50").json["advice"]
    assert (advice["kind"], advice["stop"], advice["good_batches_lost"]) == ("stop", 302, 0)
    assert advice["detour"]["mindformers"]["data_skip_steps"] == 302
    assert advice["detour"]["megatron"] == "--iterations-to-skip $(seq 301 302)"


def test_megatron_can_train_the_good_batches_before_the_stop(here: Path) -> None:
    norms = [1.0] * 17 + [9.0, 9.0]
    advice = replayed(column(here, norms), "--count", "2", "--around-spike", "last", "--every", "10").json["advice"]
    assert (advice["detour"]["checkpoint_step"], advice["good_batches_lost"]) == (10, 7)
    assert advice["detour"]["megatron"] == "--iterations-to-skip $(seq 18 19)"
    table = ask("replay", "norms.csv", "--count", "2", "--around-spike", "last", "--every", "10").stdout
    assert "data_skip_steps: 19" in table


def test_a_stop_that_was_trained_past_is_history(here: Path) -> None:
    first = write_log(here / "a.log", range(1, 203), norms=spike(200, 202), stop=202).read_text()
    rest = write_log(here / "b.log", range(203, 400), norms=spike(350, 351)).read_text()
    (here / "both.log").write_text(first + rest)
    advice = replayed("both.log", "--policy", "zscore", "--around-spike", "last", "--every", "50").json["advice"]
    assert (advice["kind"], advice["onset"]) == ("spike", 350)


@pytest.mark.parametrize("name", ["apart", "ranks"])
def test_several_logs_are_one_training_after_the_other_or_rank_beside_rank(name: str, here: Path) -> None:
    if name == "apart":
        write_log(here / "run_2.log", range(1, 11))
        write_log(here / "run_10.log", range(11, 21))
    else:
        write_log(here / "run_2.log", range(1, 21))
        write_log(here / "run_10.log", range(1, 21))
    answer = replayed("run_*.log").json
    assert (answer["first_step"], answer["last_step"], answer["steps_seen"], answer["notes"]) == (1, 20, 20, [])


def test_a_resumed_log_tells_where_it_went_back() -> None:
    said = ask("replay", str(LOGS / "mindformers_resumed_made.log"))
    assert "training went back from step 3 to 3" in " ".join(said.stdout.split())


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("mindformers_every_form_made.log", [], 9),
        ("megatron_gpt2_n16_ds_off.log", [], 62),
        ("megatron_core_made.log", [], 3),
        ("trainer_state_made.json", [], 3),
        ("columns_made.csv", ["--columns", "step=iter,global_norm=gnorm"], 4),
        ("columns_made.jsonl", [], 3),
    ],
)
def test_every_format_is_read_from_a_file_gzipped_and_from_stdin(
    name: str, options: list[str], steps: int, here: Path
) -> None:
    data = (LOGS / name).read_bytes()
    (here / "plain").write_bytes(data)
    (here / "packed").write_bytes(gzip.compress(data))
    answers = [replayed(path, "--policy", "zscore", *options).json for path in ("plain", "packed")]
    assert [answer["steps_seen"] for answer in answers] == [steps, steps]


def test_a_log_comes_from_stdin_gzipped_or_not(here: Path) -> None:
    import subprocess

    from tests.support.commands import MODULE, environment

    data = Path(BLOOM).read_bytes()
    for sent in (data, gzip.compress(data)):
        command = [*MODULE, "replay", "-", "--policy", "skip"]
        done = subprocess.run(command, input=sent, capture_output=True, check=False, env=environment(), cwd=here)
        assert b"6 updates would have been lost" in done.stdout


def test_what_cannot_be_read_is_counted_and_shown_with_its_line() -> None:
    said = ask("replay", str(LOGS / "mindformers_every_form_made.log"))
    assert said.code == 0
    assert "2 lines could not be read" in said.stdout
    assert "made.log:2: global_norm has lost" in " ".join(said.stdout.split())


def test_14_where_a_log_cannot_be_read_to_its_end_or_shows_no_step(here: Path) -> None:
    (here / "cut.log.gz").write_bytes(gzip.compress(Path(BLOOM).read_bytes())[:-40])
    (here / "poem.txt").write_text("Full fathom five\nthy father lies\n")
    (here / "empty.log").touch()
    for name in ("cut.log.gz", "poem.txt", "empty.log"):
        assert ask("replay", name).code == 14
    assert "The logs show no step" in ask("replay", "poem.txt").stdout


JUST_LONG_ENOUGH = {"zscore": 65, "zclip": 26, "olmo": 64, "features": 11}


@pytest.mark.parametrize("policy", JUST_LONG_ENOUGH)
def test_a_policy_that_never_left_its_warm_up_judges_no_checkpoint(policy: str, here: Path) -> None:
    enough = JUST_LONG_ENOUGH[policy]
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    builder.save(epoch=1, step=1)
    builder.save(epoch=1, step=enough)
    options = ["--policy", policy, "--tree", "output"]
    write_log(here / "enough.log", range(1, enough + 1))
    said = replayed("enough.log", *options)
    assert (said.code, states(said)[-1]) == (0, "clear")
    write_log(here / "few.log", range(1, enough))
    said = replayed("few.log", *options)
    assert (said.code, states(said)) == (14, ["unknown"] * 2)
    judged = said.json["judged"]
    assert (judged["first"], judged["last"]) == (None, None)
    assert ask("replay", "few.log", *options).stdout.startswith("Not judged: ")


def test_a_log_is_replayed_by_the_rule_of_its_own_trainer_unless_another_is_named(here: Path) -> None:
    write_log(here / "mindformers.log", range(1, 101))
    (here / "other.csv").write_text("step,global_norm\n" + "".join(f"{step},{3.5}\n" for step in range(1, 101)))
    assert replayed("mindformers.log").json["policy"] == "skip"
    said = replayed("other.csv")
    assert (said.code, said.json["policy"], said.json["events"]) == (0, "zscore", [])
    assert replayed(BLOOM).json["policy"] == "zscore"
    for setting in (["--threshold", "3.0"], ["--count", "5"], ["--nan", "strict"], ["--policy", "skip"]):
        assert replayed("other.csv", *setting).json["policy"] == "skip"


def test_a_spike_inside_the_warm_up_clears_no_checkpoint(here: Path) -> None:
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    for step in (20, 42, 49):
        builder.save(epoch=1, step=step)
    write_log(here / "train.log", range(1, 51), norms=dict.fromkeys(range(40, 45), 900.0))
    said = replayed("train.log", "--policy", "zscore", "--tree", "output")
    assert (said.code, states(said)) == (14, ["unknown"] * 3)
    assert states(replayed("train.log", "--threshold", "3", "--tree", "output")) == ["clear", "suspect", "clear"]


def test_a_log_that_prints_every_tenth_step_speaks_for_the_nine_after_each_and_for_none_beyond(here: Path) -> None:
    builder = TreeBuilder(here).legacy(ranks=1, sparse=True)
    for step in (600, 695, 709, 710):
        builder.save(epoch=1, step=step)
    write_log(here / "train.log", range(10, 701, 10))
    said = replayed("train.log", "--policy", "zscore", "--tree", "output")
    assert states(said) == ["unknown", "clear", "clear", "unknown"]
    marks = said.json["checkpoints"]
    reasons = [mark["reason"] for mark in marks]
    why = "zscore needs 64 steps with a norm before it judges one"
    assert reasons[0] == f"not judged: step 650 is the first that could be judged: {why}"
    assert reasons[3] == "not judged: the log ends before it, at step 709"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["absent.log"], "no log matches 'absent.log'"),
        ([BLOOM, "--policy", "zclip", "--count", "3"], "--count is no setting of zclip, which has --threshold"),
        ([BLOOM, "--policy", "features", "--threshold", "3"], "--threshold is no setting of features"),
        ([BLOOM, "--policy", "zscore", "--nan", "strict"], "--nan is no setting of zscore"),
        ([BLOOM, "--dialect", "mindspore"], "--dialect is no setting of zscore"),
        ([BLOOM, "--policy", "features", "--dialect", "jax"], "there is no 'jax'; there are torch-npu"),
        ([BLOOM, "--policy", "features", "--asd-config", "enable: true"], "the training does not start"),
        ([BLOOM, "--threshold", "nan"], "--threshold: nan is not a finite number"),
        ([BLOOM, "--threshold", "0"], "--threshold must be above 0 and finite"),
        ([BLOOM, "--around-spike", "last"], "--around-spike needs checkpoints: give --every STEPS"),
        ([BLOOM, "--around-spike", "first", "--every", "5"], "takes a step or the word last"),
        ([BLOOM, "--every", "100"], "for --around-spike: give that too"),
        ([BLOOM, "--around-spike", "last", "--every", "100", "--threshold", "5000"], "norm of 5000 or more"),
        ([], "LOG... is missing"),
    ],
)
def test_a_question_that_cannot_be_meant_is_one_line(options: list[str], words: str, here: Path) -> None:
    assert here.exists()
    said = ask("replay", *options)
    assert (said.code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert words in said.stderr


def test_stdin_is_not_read_twice(here: Path) -> None:
    import subprocess

    from tests.support.commands import MODULE, environment

    command = [*MODULE, "replay", "-", "--policy", "features"]
    done = subprocess.run(
        command, input=Path(BLOOM).read_bytes(), capture_output=True, check=False, env=environment(), cwd=here
    )
    assert done.returncode == 2
    assert b"give a file instead of -" in done.stderr


def test_a_json_answer_waits_for_nothing_heavy(here: Path) -> None:
    from tests.test_startup import HEAVY, imported

    column(here, [1, 5, 1])
    modules = imported("-m", "ckpttool", "replay", "norms.csv", "--policy", "skip", "--format", "json", cwd=here)
    assert modules & HEAVY == set()


def test_a_long_story_is_cut_for_people_and_whole_in_json(here: Path) -> None:
    write_log(here / "train.log", range(1, 400), norms=dict.fromkeys(range(100, 400, 15), 9.0))
    assert "and 8 more: --format json" in ask("replay", "train.log").stdout
    spans = replayed("train.log").json["spans"]
    assert len(spans) == 20


def test_the_same_log_gives_the_same_bytes(here: Path) -> None:
    shutil.copy(BLOOM, here / "bloom.log")
    answers = {
        run("replay", "bloom.log", "--format", "json", cwd=here, env={"PYTHONHASHSEED": seed}).stdout for seed in "012"
    }
    assert len(answers) == 1
