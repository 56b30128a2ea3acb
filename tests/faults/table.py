"""Every fault that is known: what goes wrong, how it is seen, what ckpttool says of it, and the tests that prove it.

What it says is told as `command -> word, exit code: codes of findings`, of a real tree that was well a moment before;
`test_faults.py` makes each of these (`test_fault[01-folder-gone]`) and compares the line. The word is the verdict of
`verify`, what `resolve` chose, the weight of the worst finding of `scan`, or what the others would do. The proofs are
further tests: of the rule itself, of every bit and length, and of healthy neighbours that must be left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Words = str | tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    number: int
    what: str
    """What goes wrong."""
    seen: str
    """By what it is seen, or that it cannot be."""
    says: Mapping[str, Words]
    """What must be said, by the names of the ways to make it; several that are told alike share a line."""
    proved: Mapping[str, Words]
    """Tests, by their file (and class)."""

    @property
    def lines(self) -> dict[str, tuple[str, ...]]:
        """What must be said, by each way to make it."""
        return {name: _several(words) for names, words in self.says.items() for name in names.split()}

    @property
    def proofs(self) -> tuple[str, ...]:
        """The tests' ids for pytest."""
        return tuple(f"{place}::{test}" for place, tests in self.proved.items() for test in _several(tests))


def _several(words: Words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


LAUNCH = "launch output --config base.yaml --output new.yaml --force"
PRUNE = "prune output --keep-last 1 --grace 0"

# A row is to be read as a row.
# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault(1, "a rank's folder is gone",
        "against the highest rank, other runs, strategy files, --world-size; the last rank's only by the latter two",
        {"folder-gone": ("verify output -> missing, exit 10: rank-missing",
                         "resolve output -> nothing, exit 11: rank-missing"),
         "last-folder-gone": "verify output --world-size 4 -> missing, exit 10: rank-missing",
         "last-folder-gone-without-a-trace": "verify output -> struct-ok, exit 0",
         "last-folder-gone-but-strategies-left": "verify output -> missing, exit 10: rank-missing"},
        {"tests/trainers/mindformers/layouts/test_expected.py::TestRankLayout": (
             "test_a_rank_without_a_folder_is_told_from_one_without_the_shard",
             "test_the_last_ranks_shard_is_missed_because_an_older_save_had_it"),
         "tests/trainers/mindformers/test_strategy.py::TestTrees": (
             "test_they_betray_a_last_rank_whose_folder_is_gone",
             "test_without_them_three_ranks_are_three")}),
    Fault(2, "a rank lacks its shard", "ranks are compared",
        {"shard-missing": ("verify output -> missing, exit 10: meta-ahead shard-missing",
                           "resolve output -> an older one, exit 0: meta-ahead shard-missing",
                           "resolve output --strict -> an older one, exit 10: meta-ahead shard-missing"),
         "iteration-shard-missing": "verify output -> missing, exit 10: shard-missing"},
        {"tests/trainers/mindformers/layouts/test_expected.py::TestRankLayout": (
             "test_a_shard_that_one_rank_lacks_is_named_in_full",
             "test_a_save_on_all_ranks_that_ever_saved_is_complete")}),
    Fault(3, "a safetensors file was cut", "the tensors must cover the file to its last byte",
        {"tensors-cut": ("verify output -> damaged, exit 10: shard-truncated",
                         "resolve output -> an older one, exit 0: shard-truncated"),
         "header-cut": "verify output -> damaged, exit 10: shard-truncated"},
        {"tests/core/verify/test_detection.py": (
             "test_every_cut_is_seen",
             "test_whole_shards_are_left_alone_by_every_means")}),
    Fault(4, "a .ckpt was cut, between two tensors too, which leaves a valid file",
        "lengths; its other steps and the other ranks; the training scalars at its end; its checksum",
        {"cut-inside-a-tensor": "verify output -> damaged, exit 10: shard-truncated",
         "cut-between-tensors": "verify output -> damaged, exit 10: entries-missing scalars-missing",
         "cut-between-tensors-with-a-checksum":
            "verify output -> damaged, exit 10: checksum-missing entries-missing scalars-missing"},
        {"tests/core/verify/test_session.py::TestACkptThatWasCutBetweenTwoTensors": (
             "test_every_cut_on_one_of_four_ranks_is_found_and_the_neighbours_are_left_alone",
             "test_every_cut_on_a_lone_rank_is_found"),
         "tests/core/formats/test_every_fault.py": "test_every_truncation_is_damage_but_between_two_records"}),
    Fault(5, "a file is empty, or all zeros of the right size", "size and header",
        {"empty": "verify output -> damaged, exit 10: shard-empty",
         "ckpt-of-zeros safetensors-of-zeros": "verify output -> damaged, exit 10: shard-zeroed",
         "power-cut-after-the-save": "resolve output -> an older one, exit 0: shard-empty step-unknown"},
        {"tests/core/verify/checks/test_structure.py::TestSizes": (
             "test_an_empty_file_is_damaged",
             "test_a_file_of_zeros_is_damaged_whatever_it_should_have_been"),
         "tests/core/decide/test_selection.py::TestNamesWithoutSubstance":
             "test_a_power_cut_that_emptied_the_newest_save_on_every_rank_is_told_and_not_hidden"}),
    Fault(6, "zeros from somewhere to the end, behind a good header",
        "the last page, against what it was before and against replicas; a manifest proves it",
        {"zero-tail": "verify output -> suspect, exit 10: zero-tail",
         "zero-tail-sealed": "verify output --level checksum -> damaged, exit 10: checksum-mismatch zero-tail",
         "zero-tail-over-the-training-state":
            "verify output -> damaged, exit 10: schema-differs step-disagrees zero-tail"},
        {"tests/core/verify/test_detection.py": "test_zeros_from_anywhere_to_the_end_are_seen_beside_siblings",
         "tests/core/verify/siblings/test_compare.py::TestZeroTails": (
             "test_a_page_that_was_not_zero_before_is_suspect",
             "test_pages_that_all_ranks_lost_are_suspect_and_those_never_trained_are_not")}),
    Fault(7, "a page is zeroed or swapped in the middle of tensor data", "copies on other ranks; a checksum",
        {"hole": "verify output --level checksum -> struct-ok, exit 0",
         "hole-sealed pages-swapped-sealed": "verify output --level checksum -> damaged, exit 10: checksum-mismatch"},
        {"tests/core/verify/test_detection.py":
             "test_pages_that_are_lost_or_swapped_are_seen_unless_they_hold_tensor_data_alone"}),
    Fault(8, "a bit flips in a header", "strict parsing, the form that the writers keep to, siblings",
        {"bit-of-a-large-ckpt-header": "verify output -> damaged, exit 10: schema-differs",
         "bit-of-a-ckpt-header": "verify output -> suspect, exit 10: schema-differs",
         "bit-of-a-safetensors-header": "verify output -> damaged, exit 10: header-not-canonical schema-differs",
         "bit-of-the-metadata": "verify output -> damaged, exit 10: header-invalid"},
        {"tests/core/verify/test_detection.py": (
             "test_no_bit_of_header_and_training_state_flips_unseen_beside_siblings",
             "test_of_the_header_bits_of_a_megabyte_at_most_one_in_a_thousand_flips_unseen"),
         "tests/core/formats/test_every_fault.py": "test_no_bit_of_what_a_header_says_can_flip_unseen"}),
    Fault(9, "a bit flips in a tensor", "copies on other ranks; a checksum: a manifest, MindSpore's own, a zip file's",
        {"bit-of-a-weight": "verify output --level checksum -> damaged, exit 10: replica-differs",
         "bit-of-a-weight-sealed": ("verify output --level checksum -> damaged, exit 10: checksum-mismatch",
                                    "resolve output --level checksum -> an older one, exit 0: found-damaged"),
         "bit-of-a-weight-ckpt-crc bit-of-a-weight-safetensors-crc":
            "verify output --level checksum -> damaged, exit 10: checksum-mismatch",
         "bit-of-a-file-that-mindspore-summed":
            "verify output/tensors.ckpt --level checksum -> damaged, exit 10: checksum-mismatch",
         "bit-of-a-zip-record": "verify output/model.pt --level checksum -> damaged, exit 10: checksum-mismatch"},
        {"tests/core/verify/test_detection.py": (
             "test_without_a_checksum_every_flip_that_goes_unseen_lies_in_tensor_data",
             "test_with_a_checksum_no_bit_flips_unseen",
             "test_in_a_file_that_mindspore_wrote_with_a_checksum_no_bit_flips_unseen_even_alone"),
         "tests/core/verify/checks/test_checksum.py::TestTorch":
             "test_records_without_a_single_crc_are_not_verified_and_not_damaged"}),
    Fault(10, "NaN, infinity, a tensor all zero, a norm that exploded: whole, and sick",
        "numbers; copies on other ranks; the training's log",
        {"nan": ("verify output --level numerics -> damaged, exit 10: nonfinite-values replica-differs",
                 "resolve output --level numerics -> an older one, exit 0: found-damaged",
                 "health output --from-weights -> unhealthy, exit 10: replica-differs"),
         "all-zero": "verify output --level numerics -> damaged, exit 10: all-zero-tensor replica-differs",
         "exploded-norm": "verify output --level numerics -> damaged, exit 10: norm-jump replica-differs"},
        {"tests/core/verify/checks/test_numerics.py::TestOneFile": "test_nan_and_infinity_are_suspect_and_counted",
         "tests/core/verify/checks/test_numerics.py::TestBesideTheCheckpointBefore":
             "test_what_is_no_jump_is_left_alone",
         "tests/health/test_embedding.py": "test_the_log_decides_against_the_threshold"}),
    Fault(11, "a file is another rank's",
        "another rank holds the same bytes though it did not before; tensors; a manifest",
        {"slices-of-another-rank large-slices-of-another-rank": "verify output -> suspect, exit 10: schema-differs",
         "large-slices-of-another-rank-sealed":
            "verify output --level checksum -> damaged, exit 10: checksum-mismatch schema-differs"},
        {"tests/core/verify/test_detection.py": "test_another_ranks_shard_is_seen_beside_siblings_and_by_the_manifest",
         "tests/core/verify/siblings/test_compare.py::TestCopies": "test_slices_are_left_alone"}),
    Fault(12, "a file is an older one under the newer name",
        "step and epoch inside, against the name and other ranks; of another run's same step: copies, a manifest",
        {"older-shard": ("verify output -> damaged, exit 10: epoch-disagrees name-disagrees step-disagrees",
                         "resolve output -> an older one, exit 0: epoch-disagrees name-disagrees step-disagrees"),
         "earlier-run-at-the-same-step": "verify output --level checksum -> damaged, exit 10: replica-differs",
         "earlier-run-at-the-same-step-sealed":
            "verify output --level checksum -> damaged, exit 10: checksum-mismatch"},
        {"tests/core/verify/test_session.py::TestFilesInTheWrongPlace":
            "test_an_older_shard_under_a_newer_name_is_found",
         "tests/core/verify/test_detection.py":
             "test_a_shard_of_another_run_at_the_same_step_is_seen_by_the_manifest_alone"}),
    Fault(13, "two trainings, or two runs' suffixes, are mixed in one folder",
        "files are grouped by prefix and run; between two trainings nobody guesses, a later run goes before an earlier",
        {"two-prefixes": ("resolve output -> nothing, exit 14: run-mixed",
                          "resolve output --prefix llama2_7b -> the newest, exit 0"),
         "node-replaced": ("resolve output -> nothing, exit 11: meta-ahead needs-renames shard-missing",
                           "resolve output --allow-renames -> the newest, exit 0: meta-ahead")},
        {"tests/core/decide/test_resume.py::TestPrefixes":
            "test_several_trainings_in_one_folder_are_not_guessed_between",
         "tests/core/domain/test_progress.py": "test_a_later_run_comes_first_even_at_a_lower_step",
         "tests/core/decide/test_selection.py::TestRuns":
             "test_a_replaced_node_belongs_to_the_run_whose_steps_it_saved"}),
    Fault(14, "a name says another epoch or step than the content", "the training scalars inside",
        {"name-of-another-epoch": ("verify output -> suspect, exit 10: meta-ahead name-disagrees",
                                   "resolve output -> an older one, exit 0: meta-ahead name-disagrees step-unknown")},
        {"tests/core/verify/test_collect.py": (
             "test_a_name_of_another_epoch_than_the_content_is_suspect",
             "test_a_name_with_the_step_in_the_epoch_is_left_alone")}),
    Fault(15, "meta.json is torn, empty, or means two things",
        "strict JSON of bounded size and depth; ignored, for the shards are the truth, and reported",
        {"torn": ("scan output -> note, exit 0: meta-unreadable",
                  "resolve output -> the newest, exit 0: meta-unreadable",
                  "repair-meta output --grace 0 -> 1 to write, exit 0"),
         "empty-record key-twice nan-for-a-number flag-for-a-number text-for-a-number huge-number nested too-large":
            "resolve output -> the newest, exit 0: meta-unreadable"},
        {"tests/core/formats/test_strict_json.py":
            "test_a_document_that_readers_could_understand_differently_is_refused",
         "tests/trainers/mindformers/layouts/test_rank.py::TestMeta": (
             "test_a_record_that_cannot_be_believed_is_a_note",
             "test_records_that_agree_with_the_shards_are_not_mentioned"),
         "tests/retention/test_repair.py":
             "test_a_record_in_trouble_is_written_from_the_shards_and_the_others_are_not_touched"}),
    Fault(16, "meta.json is ahead of the shards, behind them, absent, or ranks' disagree", "against the shards",
        {"meta-ahead": ("resolve output -> an older one, exit 0: meta-ahead",
                        "repair-meta output --grace 0 -> 4 to write, exit 0"),
         "meta-behind": "resolve output -> the newest, exit 0: meta-behind",
         "meta-gone": "resolve output -> the newest, exit 0: meta-missing",
         "meta-of-one-rank-behind": "resolve output -> the newest, exit 0: meta-behind"},
        {"tests/core/decide/test_selection.py::TestLabelsAndRecords":
             "test_what_an_asynchronous_save_finished_last_counts_though_no_record_names_it",
         "tests/trainers/mindformers/test_newer_layout.py::TestNeverAnOlderIteration":
             "test_an_unreadable_tracker_leaves_the_newest_whole_iteration"}),
    Fault(17, "meta.json names a file outside of its folder, or one with control characters",
        "a name must be a plain one; nothing that a record says is opened",
        {"leads-up": ("scan output -> unsafe, exit 15: unsafe-name",
                      "verify output -> struct-ok, exit 15: unsafe-name",
                      "resolve output -> the newest, exit 0: unsafe-name"),
         "absolute nul control-characters": "scan output -> unsafe, exit 15: unsafe-name"},
        {"tests/trainers/mindformers/layouts/test_rank.py::TestMeta":
             "test_a_name_that_leads_elsewhere_is_unsafe_and_never_followed"}),
    Fault(18, "the health file is torn, contradicts itself, calls all unhealthy, or names nothing",
        "strict JSON; the worst entry wins, a missing one means unknown, and nothing falls back in silence",
        {"torn-health-file": ("scan output -> unknown, exit 14: health-unreadable",
                              "health output -> unknown, exit 14: health-unreadable",
                              "resolve output -> the newest, exit 14: health-unheard health-unreadable",
                              "resolve output --require-health -> nothing, exit 11: health-unknown health-unreadable"),
         "contradiction": ("scan output -> suspect, exit 10: health-contradictory",
                           "resolve output -> an older one, exit 0: health-contradictory marked-unhealthy"),
         "all-unhealthy": "resolve output -> nothing, exit 11: marked-unhealthy",
         "names-that-were-never-written": "resolve output -> the newest, exit 0: health-names-nothing",
         "newest-not-recorded": ("health output -> unknown, exit 14",
                                 "resolve output --require-health -> an older one, exit 0: health-unknown")},
        {"tests/trainers/mindformers/test_health_file.py": (
             "test_the_unhealthy_entry_wins_whatever_the_order",
             "test_the_real_file_tells_two_healthy_checkpoints_and_one_unhealthy"),
         "tests/trainers/mindformers/test_odd_trees.py::TestATornHealthFile":
             "test_still_tells_what_was_unhealthy_and_no_longer_what_was_healthy"}),
    Fault(19, "a shard's name leads to a pipe, a device, /proc, itself, nowhere, or out of the tree",
        "opened without waiting, and only if regular; links are followed to read, never to change; nowhere is unknown",
        {"fifo": ("verify output -> missing, exit 15: meta-ahead not-a-regular-file shard-missing",
                  "resolve output -> an older one, exit 0: meta-ahead not-a-regular-file shard-missing"),
         "device": "verify output -> missing, exit 15: meta-ahead not-a-regular-file shard-missing",
         "loop link-to-a-disk-that-is-not-mounted": (
            "scan output -> unknown, exit 14: unreadable",
            "verify output -> unreadable, exit 14: unreadable",
            "resolve output -> an older one, exit 0: unreadable"),
         "iteration-link-to-nowhere": ("scan output -> unknown, exit 14: unreadable",
                                       "verify output -> unreadable, exit 14: unreadable",
                                       "resolve output -> an older one, exit 0: unreadable"),
         "memory-of-a-process": "verify output -> damaged, exit 10: shard-empty",
         "linked-file hard-link": "verify output -> struct-ok, exit 0",
         "linked-folder": ("verify output -> struct-ok, exit 0",
                           f"{PRUNE} --apply -> 4 go, exit 15: not-a-regular-file"),
         "link-that-would-be-pruned": f"{PRUNE} --apply -> 4 go, exit 15: not-a-regular-file"},
        {"tests/core/verify/test_check.py::TestWhatIsNoFile": (
             "test_a_fifo_is_refused_and_does_not_hang",
             "test_a_link_to_a_whole_file_is_read_as_that_file",
             "test_a_link_that_leads_nowhere_is_unreadable_and_told_what_to_do"),
         "tests/trainers/mindformers/layouts/test_rank.py::TestOtherFiles":
             "test_a_shard_that_leads_nowhere_still_counts",
         "tests/core/verbs/test_sealing.py": "test_nothing_is_written_through_a_link_that_leaves_the_tree",
         "tests/core/write/test_moves.py": "test_no_folder_on_the_way_may_be_a_link"}),
    Fault(20, "a file or folder cannot be read",
        "the error, for each file; the rest goes on, and unknown is never good",
        {"shard-without-permission shard-on-a-bad-sector stale-handle timed-out": (
            "verify output -> unreadable, exit 14: unreadable",
            "resolve output -> an older one, exit 0: unreadable"),
         "folder-without-permission": "scan output -> unknown, exit 14: unreadable"},
        {"tests/core/verify/test_check.py::TestADiskThatFails": (
             "test_what_cannot_be_opened_is_unreadable_never_damaged_and_never_good",
             "test_a_bad_sector_in_a_tensor_is_found_by_reading_it_and_by_nothing_else")}),
    Fault(21, "the disk hangs", "a deadline; the thread is left behind",
        {"read-that-hangs": "verify output --timeout 1 -> unreadable, exit 14: unreadable"},
        {"tests/core/verify/test_hung_disk.py":
            "test_a_read_that_hangs_leaves_the_check_incomplete_and_the_process_ends",
         "tests/core/verify/engines/test_threads.py::TestADeadDisk": "test_all_disks_dead_still_ends"}),
    Fault(22, "our own write fails: disk or quota full, read-only, too large",
        "the old file stays, nothing lies around",
        {"disk-full quota-full file-too-large disk-read-only": f"{LAUNCH} -> error, exit 1"},
        {"tests/core/write/test_files.py": (
             "test_whatever_call_fails_the_file_is_the_old_one_or_the_new_one_and_nothing_lies_around",
             "test_a_failed_fsync_is_not_tried_again")}),
    Fault(23, "the folder cannot be brought to the disk after the rename", "said; nothing is rolled back",
        {"folder-not-on-the-disk": f"{LAUNCH} -> error, exit 16"},
        {"tests/cli/test_exit_codes.py": "test_16_where_the_disk_did_not_confirm",
         "tests/core/verbs/test_sealing.py": "test_a_folder_that_does_not_reach_the_disk_is_said"}),
    Fault(24, "a training saves at the same time", "size and time before and after; temporary files",
        {"shard-that-grows": ("verify output -> unstable, exit 14: changed-while-reading",
                              "resolve output -> an older one, exit 0: changed-while-reading"),
         "temporary-file": (f"{PRUNE} --apply -> 4 go, exit 14: in-progress",
                            "resolve output -> the newest, exit 0: in-progress")},
        {"tests/core/verify/test_check.py::TestAFileThatChanges": (
             "test_a_writer_beside_us_never_makes_a_whole_file_damaged",
             "test_one_that_grows_once_is_looked_at_again_and_then_believed"),
         "tests/retention/test_prune.py::TestWriters": "test_a_temporary_file_refuses_until_it_is_gone"}),
    Fault(25, "somebody prunes at the same time", "listed, and gone when it is opened: never called damage",
        {"shard-pruned-meanwhile": "verify output -> unstable, exit 14: changed-while-reading"},
        {"tests/core/verify/test_check.py::TestAFileThatChanges":
            "test_one_that_is_gone_is_unstable_and_not_called_damage",
         "tests/retention/test_prune_interrupted.py": "test_no_moment_shows_a_checkpoint_on_fewer_ranks"}),
    Fault(26, "two ckpttools change one tree", "a lock, held from the first read to the last rename",
        {"tree-that-another-prunes": (f"{PRUNE} --apply -> error, exit 13",
                                      "repair-meta output --grace 0 --apply -> error, exit 13")},
        {"tests/core/write/test_files.py": "test_no_update_is_lost_between_writers_that_lock",
         "tests/core/verbs/test_sealing.py": "test_processes_that_seal_at_the_same_time_leave_one_whole_manifest"}),
    Fault(27, "the file system has no locks", "a lock file of another name takes their place",
        {"held-by-a-soft-lock": f"{PRUNE} --apply -> error, exit 13",
         "held-by-nobody": f"{PRUNE} --apply -> 4 go, exit 0"},
        {"tests/core/write/test_files.py": "test_without_file_locks_a_soft_lock_does_the_same"}),
    Fault(28, "clocks differ: times in the future, reversed, or all the same", "no order is ever taken from times",
        {"times-reversed": ("resolve output -> the newest, exit 0",
                            f"{PRUNE} -> 4 go, exit 0"),
         "times-all-the-same": "resolve output -> the newest, exit 0"},
        {"tests/core/decide/test_selection.py::TestDisksAndTimes":
             "test_touching_or_copying_an_old_file_does_not_make_it_new",
         "tests/retention/test_prune.py::TestWriters": "test_a_clock_that_is_days_ahead_does_not_refuse_for_ever"}),
    Fault(29, "names hold escape sequences, markup, line ends, no UTF-8", "escaped where shown, whole in JSON",
        {"odd-stray": "scan output -> note, exit 0: stray-file",
         "odd-prefix": "resolve output -> the newest, exit 0: meta-missing"},
        {"tests/core/commands/test_hostile_names.py": (
             "test_a_table_shows_it_without_obeying_it",
             "test_json_gives_it_back_as_it_is"),
         "tests/core/render/test_escape.py": "test_nothing_that_is_shown_moves_a_cursor"}),
    Fault(30, "a header of 100 MB, deep JSON, giant numbers, a file of a terabyte", "limits, before anything is read",
        {"terabyte-of-zeros": "verify output -> damaged, exit 10: shard-zeroed",
         "header-of-100-mb deep-header giant-numbers":
            "verify output -> damaged, exit 10: header-invalid name-disagrees"},
        {"tests/core/verify/test_hostile.py": "test_a_hostile_file_is_answered_soon_and_in_little_memory",
         "tests/core/formats/test_mindspore_ckpt.py": "test_more_records_than_the_limit_are_refused",
         "tests/core/formats/test_safetensors.py": "test_more_keys_than_the_limit_are_refused_but_not_called_damaged"}),
    Fault(31, "a YAML config that explodes, nests, calls code, or sets a key twice",
        "limits on bytes, depth and aliases; no tags; odd spellings mean what the trainer reads, and stay as they are",
        {"alias-bomb": ("lint-config base.yaml -> no-go, exit 15: config-unusable",
                        f"{LAUNCH} -> error, exit 15"),
         "deep-yaml": f"{LAUNCH} -> error, exit 15",
         "tag yaml-key-twice": f"{LAUNCH} -> error, exit 2",
         "odd-spelling": f"{LAUNCH} -> written, exit 0"},
        {"tests/trainers/mindformers/test_train_config.py::TestHostileYaml": (
             "test_what_cannot_be_a_config_is_one_clear_line",
             "test_aliases_anchors_and_merges_of_a_real_config_are_followed",
             "test_whatever_the_text_it_is_read_as_pyyaml_reads_it_or_refused")}),
    Fault(32, "a shard is a pickle, which runs code when it is loaded",
        "every opcode is read, and the names that it calls for are compared with those that tensors need; never loaded",
        {"pickle": ("verify output -> unsafe, exit 15: unsafe-pickle",
                    "resolve output -> an older one, exit 0: unsafe-pickle"),
         "pickle-of-tensors": "verify output -> unsupported, exit 14: unsupported-format",
         "pickle-in-a-zip": ("verify output -> unsafe, exit 15: unsafe-pickle unsupported-format",
                             "resolve output -> an older one, exit 0: unsafe-pickle unsupported-format"),
         "pickle-in-a-model": ("verify output/model.pt -> unsafe, exit 15: unsafe-pickle",
                               "verify output/model.pt --level checksum -> unsafe, exit 15: unsafe-pickle"),
         "class-of-somebodys-own": "verify output/model.pt --level checksum -> verified, exit 0: unsafe-pickle"},
        {"tests/core/formats/test_pickles.py::TestWhatRunsCode": (
             "test_a_call_is_found_in_every_protocol_wherever_it_hides",
             "test_a_name_that_runs_code_or_reaches_it_is_refused"),
         "tests/core/formats/test_pickles.py::TestHiding": "test_what_is_put_together_is_refused",
         "tests/core/formats/test_pickles.py": "test_whatever_an_unpickler_would_ask_for_is_found",
         "tests/core/formats/test_pickles.py::TestWhatTrainersWrite": (
             "test_a_file_that_torch_saved_is_left_alone",
             "test_all_pickles_of_a_legacy_file_are_read_and_left_alone"),
         "tests/core/verify/checks/test_checksum.py::TestTorch": (
             "test_a_pickle_that_would_run_a_program_is_unsafe_and_is_not_run",
             "test_a_model_that_torch_saved_is_verified_and_never_unpickled")}),
    Fault(33, "a zip file that is a bomb, overlaps, names one record twice, or contradicts itself",
        "nothing is inflated; both headers of a record must agree, and all must fit in the file side by side",
        {"bomb flag-of-encryption": "verify output/model.pt --level checksum -> unsafe, exit 15: unsupported-format",
         "name-twice": "verify output/model.pt --level checksum -> unsafe, exit 15: header-invalid",
         "headers-disagree": "verify output/model.pt --level checksum -> damaged, exit 10: header-invalid",
         "appended": "verify output/model.pt --level checksum -> damaged, exit 10: trailing-bytes"},
        {"tests/core/formats/test_zip_directory.py": (
             "test_records_on_each_other_are_refused",
             "test_every_flipped_bit_of_a_header_that_means_anything_is_found",
             "test_a_real_file_has_the_records_that_zipfile_finds_and_no_finding")}),
    Fault(34, "a checksum was stripped, or its mark flipped", "siblings that have one; a manifest",
        {"trailer-stripped": "verify output -> suspect, exit 10: checksum-missing",
         "trailer-stripped-sealed":
            "verify output --level checksum -> damaged, exit 10: checksum-mismatch checksum-missing",
         "marker-flipped": "verify output -> damaged, exit 10: trailing-bytes"},
        {"tests/core/verify/siblings/test_compare.py::TestStrippedChecksums": (
             "test_a_checksum_that_all_others_have_is_missed",
             "test_checksums_switched_on_or_off_for_all_are_left_alone")}),
    Fault(35, "somebody rewrites all copies of a shard and the manifest together",
        "not at all: a manifest is no signature",
        {"shard-and-manifest-rewritten": "verify output --level checksum -> verified, exit 0"},
        {"tests/faults/test_faults.py": "test_what_cannot_be_seen_is_said_where_a_user_looks"}),
    Fault(36, "memory was wrong before the save",
        "not at all in the file; what detectors logged, numbers and health tell",
        {"wrong-before-the-save": (
            "verify output --checkpoint _1-30_2 --level checksum -> verified, exit 0",
            "health output --threshold 1 --log train.log -> unhealthy, exit 10")},
        {"tests/faults/test_faults.py": "test_what_cannot_be_seen_is_said_where_a_user_looks",
         "tests/health/test_timeline.py": "test_a_strike_makes_every_checkpoint_suspect_from_its_first_event_on"}),
    Fault(37, "every shard is well, and the trainer would load something else, or not find it",
        "names alone: what lies beside the shards, where they lie, and what the trainer makes of rank 0's name",
        {"shards-gathered-in-one-folder": ("verify output -> missing, exit 10: name-disagrees shard-elsewhere",
                                           "resolve output -> nothing, exit 11: name-disagrees shard-elsewhere"),
         "number-spelled-otherwise": ("verify output -> missing, exit 10: meta-ahead shard-respelled",
                                      "resolve output -> an older one, exit 0: meta-ahead shard-respelled"),
         "weights-beside-the-ranks": "resolve output -> the newest, exit 0: ckpt-beside-ranks stray-file",
         "rank-in-the-prefix": "resolve output -> the newest, exit 0: prefix-holds-rank",
         "one-card-without-its-model": ("verify output -> missing, exit 10: shard-missing",
                                        "resolve output -> an older one, exit 0: shard-missing"),
         "one-card-without-any-optimizer": "resolve output -> the newest, exit 0: optimizer-missing",
         "weights-beside-one-cards": ("verify output -> suspect, exit 10: extra-safetensors",
                                      "resolve output -> an older one, exit 0: extra-safetensors")},
        {"tests/trainers/mindformers/test_loads_something_else.py::TestNumbersSpelledOtherwise":
             "test_a_name_without_leading_zeros_is_nothing_odd",
         "tests/trainers/mindformers/test_loads_something_else.py::TestFilesOfOtherRanks":
             "test_a_file_of_a_rank_without_a_part_in_these_saves_says_nothing",
         "tests/trainers/mindformers/test_loads_something_else.py::TestFurtherSafetensors":
             "test_what_glob_does_not_find_is_a_stray",
         "tests/trainers/mindformers/test_loads_something_else.py::TestBehindAGo": (
             "test_weights_beside_the_ranks_are_loaded_into_every_rank",
             "test_a_ckpt_beside_ranks_whose_shards_are_safetensors_does_no_harm",
             "test_without_optimizer_state_it_is_no_go_unless_the_config_means_it"),
         "tests/trainers/mindformers/test_loaded_instead.py":
             "test_a_start_that_loads_what_the_plan_names_is_left_alone"}),
    Fault(38, "each machine saves to a disk of its own, and one is asked",
        "launchers' variables, a declared world size that is a multiple; else not at all",
        {"seen-from-one-machine-of-two": (
            "resolve output -> the newest, exit 14: one-node-only",
            "resolve output --world-size 4 -> nothing, exit 14: one-node-only rank-missing",
            "verify output -> struct-ok, exit 0: one-node-only")},
        {"tests/core/decide/test_one_node.py::TestWholeHere": (
             "test_where_a_launcher_speaks_of_more_it_is_unknown",
             "test_on_a_single_machine_it_is_as_it_was",
             "test_on_a_disk_that_all_machines_see_it_is_as_it_was"),
         "tests/core/decide/test_one_node.py::TestRanksElsewhere": (
             "test_a_machines_share_of_the_declared_ranks_is_no_word_on_the_others",
             "test_what_no_machine_of_several_equal_ones_has_is_a_loss")}),
)
# fmt: on
