"""Findings inside one file: is it whole?"""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import DAMAGE, NOTE, SUSPECT, UNKNOWN, UNSAFE, Explanation

_FALL_BACK = (
    "Resume from the newest checkpoint that is whole; resolve finds it:",
    "ckpttool resolve DIR",
)
_NEVER_OPENS = "Picks by name and never opens a file before, so it takes this one, and the load fails or goes wrong."

SHARDS = (
    Explanation(
        code=Code.SHARD_EMPTY,
        title="A file without a single byte",
        severities=DAMAGE,
        meaning="The name was created, the content never reached the disk: a full disk, a killed save, or a power cut "
        "up to 40 seconds after MindSpore reported the save as done.",
        evidence="The file has size 0.",
        mindformers=_NEVER_OPENS,
        remedy=_FALL_BACK,
    ),
    Explanation(
        code=Code.SHARD_TRUNCATED,
        title="The file ends too early",
        severities=DAMAGE,
        meaning="The header promises more bytes than there are: the save was cut off, or a copy was.",
        evidence="The header's offsets (safetensors) or record lengths (.ckpt) are compared with the file's size.",
        mindformers=_NEVER_OPENS,
        remedy=("Copy it again from its rank's disk if it was copied.", *_FALL_BACK),
    ),
    Explanation(
        code=Code.SHARD_ZEROED,
        title="The file has its size, but zeros where its header should be",
        severities=DAMAGE,
        meaning="The space was set aside and never filled: typical of a power cut seconds after a save that MindSpore "
        "reported as done, for it does not sync what it writes.",
        evidence="The first bytes of the file are all zero.",
        mindformers=_NEVER_OPENS,
        remedy=_FALL_BACK,
    ),
    Explanation(
        code=Code.ZERO_TAIL,
        title="The file ends in zeros",
        severities=(Severity.NOTE, Severity.SUSPECT, Severity.DAMAGE),
        meaning="The header is sound, but from some byte on there is nothing but zeros where records should be: the "
        "end of the file was lost in a power cut, or filled up by a copy.",
        evidence="After the last good record of a .ckpt come zeros to the end of the file. Suspect where "
        "the last page of data is zero and its siblings' is not: an optimizer moment may legally be.",
        mindformers="MindSpore fails to load such a .ckpt. A safetensors file with a zeroed end loads in silence, "
        "with weights of 0.",
        remedy=_FALL_BACK,
    ),
    Explanation(
        code=Code.HEADER_INVALID,
        title="The file's header makes no sense",
        severities=DAMAGE,
        meaning="It is no file of the format it should be, or bits of its header have flipped.",
        evidence="Every field is checked strictly: lengths, JSON without a key twice, known types, and for each "
        "tensor shape x type = bytes. In torch's zip files each record must have the bytes that data.pkl says.",
        mindformers="MindSpore's loader accepts many of these, and dies of a signal on 1.5 % of flipped header bits; "
        "so ckpttool reads headers itself.",
        remedy=("Do not load it to see what happens.", *_FALL_BACK),
    ),
    Explanation(
        code=Code.HEADER_NOT_CANONICAL,
        title="A valid header, but not as safetensors or MindSpore writes it",
        severities=NOTE,
        meaning="Order, spacing or padding differ from what the libraries write. Another tool may have written the "
        "file; or one bit of it has flipped and left valid JSON behind.",
        evidence="The header is compared with how the libraries spell it.",
        mindformers="Loads it.",
        remedy=(
            "If no other tool wrote this file, prefer another checkpoint:",
            "ckpttool resolve DIR --checkpoint NAME",
        ),
    ),
    Explanation(
        code=Code.OFFSETS_NOT_CONTIGUOUS,
        title="Tensors overlap or leave holes in the file",
        severities=(Severity.SUSPECT, Severity.DAMAGE),
        meaning="The header's offsets must cover the data from its first byte to its last, once. Here they do not, so "
        "at least one tensor's bytes belong to another.",
        evidence="All offsets of the safetensors header are put in order and compared.",
        mindformers="The load fails, after the file was picked.",
        remedy=_FALL_BACK,
    ),
    Explanation(
        code=Code.TRAILING_BYTES,
        title="The file goes on after its last tensor",
        severities=(Severity.SUSPECT, Severity.DAMAGE),
        meaning="Bytes that no tensor claims: a longer file was overwritten, two were joined, or garbage was appended.",
        evidence="The end of the last tensor is compared with the file's size.",
        mindformers="The load fails, after the file was picked.",
        remedy=_FALL_BACK,
    ),
    Explanation(
        code=Code.CHECKSUM_MISMATCH,
        title="The bytes are not those that were saved",
        severities=DAMAGE,
        meaning="A checksum was recorded, and the content does not match it: bits flipped on the way to the disk, on "
        "the disk, or in a copy. Loaders would not notice.",
        evidence="verify --level checksum reads every byte and compares with the manifest, else with the CRC "
        "that MindSpore or torch put into the file.",
        mindformers="Never writes or checks a checksum; a flipped bit in a tensor loads in silence.",
        remedy=("Do not resume from it. What else there is:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.CHECKSUM_MISSING,
        title="Nothing to compare the bytes with",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="The structure is sound, but no checksum was recorded when the file was saved. A flipped bit in tensor "
        "data, which is more than 99 % of a file, cannot be seen.",
        evidence="verify --level checksum looked for a manifest and for a CRC inside the file. Suspect where "
        "sibling files carry a CRC: then the end of this one may have been cut off.",
        mindformers="Never writes or checks a checksum.",
        remedy=("Record checksums now, so that later damage is seen:", "ckpttool seal DIR"),
    ),
    Explanation(
        code=Code.NONFINITE_VALUES,
        title="Tensors hold NaN or infinity",
        severities=SUSPECT,
        meaning="The file may be intact and the training sick: it diverged before this save.",
        evidence="verify --level numerics looks at every element of every floating-point tensor.",
        mindformers="Loads it; the first loss is NaN.",
        remedy=("Resume from before the loss went wrong:", "ckpttool resolve DIR --checkpoint NAME"),
    ),
    Explanation(
        code=Code.ALL_ZERO_TENSOR,
        title="A tensor is zero from end to end",
        severities=SUSPECT,
        meaning="Legal for an optimizer moment that was never updated, a lost write for a weight matrix.",
        evidence="verify --level numerics looks at every element; the checkpoint before had other values there.",
        mindformers="Loads it in silence.",
        remedy=("Compare with an older checkpoint, or resume from one:", "ckpttool resolve DIR --checkpoint NAME"),
    ),
    Explanation(
        code=Code.NORM_JUMP,
        title="A tensor's norm is far from what it was one checkpoint before",
        severities=SUSPECT,
        meaning="Weights move slowly from save to save. A jump means that the training blew up, or that bits flipped.",
        evidence="verify --level numerics compares each tensor's L2 norm with that of the checkpoint before; --jump "
        "sets the factor.",
        mindformers="Loads it in silence.",
        remedy=(
            "Look at the loss around that step, or resume from before it:",
            "ckpttool resolve DIR --checkpoint NAME",
        ),
    ),
    Explanation(
        code=Code.UNSUPPORTED_FORMAT,
        title="A format that ckpttool does not look into",
        severities=UNKNOWN,
        meaning="A torch file lies under a name that MindSpore gives its own, or a .ckpt holds something that no "
        "MindFormers training writes (encrypted, or of an unknown tensor type). Whether it is whole is not known. At "
        "level numerics, also every other torch file: its bytes are verified, its numbers are not looked at.",
        evidence="The first bytes tell the format, never the suffix.",
        mindformers="Picks it by its name; the load fails.",
        remedy=("Move the file away if it does not belong here, or take another checkpoint:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.UNSAFE_PICKLE,
        title="Loading this file would run code, or may",
        severities=NOTE + UNSAFE,
        meaning="A pickle names functions, and torch.load calls them unless with weights_only. Unsafe: it names what "
        "runs programs or code, or hides what it names; no tensor needs that. A note: it names somebody's own classes "
        "(as Megatron's and DeepSpeed's files do), and nobody can tell what they do.",
        evidence="Every opcode is read, of data.pkl in a zip file and of a bare pickle, and nothing is executed. Names "
        "are compared with those of tensors and plain values; the rest of Python's own library counts as unsafe, and "
        "so does what loads or runs something in the libraries that a training has. An attribute of somebody's own "
        "class (a bound method, a nested class) is a note; an attribute that is computed is unsafe.",
        mindformers=None,
        remedy=(
            "Unsafe: do not load it anywhere, and find out who put it there.",
            "A note: load it with weights_only=True, or where you trust who wrote it.",
        ),
    ),
    Explanation(
        code=Code.OVER_LIMIT,
        title="Larger than anything a trainer writes",
        severities=UNSAFE,
        meaning="A header, a count or a nesting exceeds a limit by which ckpttool guards memory and time. No real "
        "checkpoint comes near it; the file is damaged, or made to hurt.",
        evidence="Lengths are checked before anything is allocated or read.",
        mindformers=None,
        remedy=("Look at where the file came from, and take another checkpoint:", "ckpttool resolve DIR"),
    ),
)
