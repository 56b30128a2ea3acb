"""What only the checks of FP8 find: in configs, in saves, and between two runs."""

from __future__ import annotations

from ckpttool.core.findings import DAMAGE, NOTE, SUSPECT, UNKNOWN, Row, Rows


class Fp8Code(metaclass=Rows):
    """What only the checks of FP8 find: in configs, in saves, and between two runs."""

    FP8_SCALE_MISSING = Row(
        "fp8-scale-missing",
        weights=(NOTE, DAMAGE),
        group="Trainings in FP8",
        headline="A weight lies in FP8 and its scale is not there",
        meaning=(
            "A weight of eight bits is a code and a scale. Without the scale all of its numbers are too large or too "
            "small by a factor that nobody knows. A note where no weight of the checkpoint has a scale: then it may "
            "have been cast as it is."
        ),
        evidence=(
            "`X.weight_scale_inv` or `X.weight_scale` is looked for beside `X.weight`, in the same file and in the "
            "others of the save."
        ),
        to_do=("Bring the file with the scales back, or convert the checkpoint once more.",),
    )

    FP8_SCALE_SHAPE = Row(
        "fp8-scale-shape",
        weights=(DAMAGE,),
        group="Trainings in FP8",
        headline="The scale of a weight in FP8 has a shape that fits none",
        meaning=(
            "A weight has one scale, one for each row, or one for each block. A scale of another shape is of another "
            "weight, or the block size is not what is recorded."
        ),
        evidence=(
            "The shapes are compared; blocks are 128 x 128, or what `quantization_config.weight_block_size` in "
            "config.json says."
        ),
        to_do=("See whether config.json is the one of this checkpoint, and convert it once more.",),
    )

    FP8_SCALE_INVALID = Row(
        "fp8-scale-invalid",
        weights=(DAMAGE,),
        group="Trainings in FP8",
        headline="Scales of a weight in FP8 are zero, negative or not finite",
        meaning="Every number that such a scale belongs to becomes zero, changes its sign, or is not finite.",
        evidence="Every scale is read.",
        to_do=("Convert the checkpoint once more from one of higher precision; else go back to an earlier one.",),
    )

    FP8_RANGE_UNUSED = Row(
        "fp8-range-unused",
        weights=(NOTE,),
        group="Trainings in FP8",
        headline="Blocks of a weight in FP8 leave their upper range unused",
        meaning=(
            "A scale brings the largest number of its block near to the format's largest. Where it does not, small "
            "numbers are lost that could have been kept: the scale is older than the weight, or of another."
        ),
        evidence="The largest code of each block is below a quarter of the format's largest.",
        to_do=("Convert once more from the weights of higher precision where they are still there.",),
    )

    SWIGLU_ALIGNED = Row(
        "swiglu-aligned",
        weights=(NOTE,),
        group="Trainings in FP8",
        headline="Gate and up weights of a SwiGLU grow into one direction",
        meaning=(
            "A unit whose gate and up weights point the same way squares its input: its output has outliers that a "
            "delayed scale does not foresee. Trainings in FP8 were seen to diverge by this after hundreds of billions "
            "of tokens, and nothing else shows it before."
        ),
        evidence=(
            "For each hidden unit the gain λ = |g||u|(1 + ρ)/2, ρ the cosine of its two rows; the largest is four "
            "times the median or more. Fresh weights have 1.1."
        ),
        to_do=(
            (
                "Watch it over the next checkpoints. Where it grows, compute the product behind the SwiGLU in BF16, or "
                "give it a scale of its own."
            ),
        ),
    )

    FP8_LR_DIFFERS = Row(
        "fp8-lr-differs",
        weights=(UNKNOWN,),
        group="Trainings in FP8",
        headline="The two runs were trained with different learning rates",
        meaning=(
            "At over 1 % of the steps that both logs show, the learning rates lie over 1 % apart. Another schedule "
            "moves a loss further than FP8 does, so nothing can be told from these two."
        ),
        evidence=(
            "Both logs show the learning rate of each step. A schedule that depends on the number of steps in all "
            "changes when that number is changed."
        ),
        to_do=("Start the candidate once more with the baseline's schedule, and end it early by other means.",),
    )

    FP8_INTERVAL_DIFFERS = Row(
        "fp8-interval-differs",
        weights=(UNKNOWN,),
        group="Trainings in FP8",
        headline="The two logs have a line for different numbers of steps",
        meaning=(
            "Many trainers print the mean of the loss since the last line. A mean over ten steps and the value of one "
            "do not belong together, even at the same step."
        ),
        evidence="The distance between most lines of each log.",
        to_do=("Log both runs at the same interval.",),
    )

    FP8_HISTORY_SHORT = Row(
        "fp8-history-short",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Delayed scaling goes by the most recent step alone",
        meaning=(
            "A delayed scale comes from the largest values of earlier steps. With a history of one step, or "
            "`most_recent`, one step with small values makes the scale too large for the next, which then overflows."
        ),
        evidence=(
            "Read in Transformer Engine, whose own defaults are 1024 steps and their maximum; the defaults of "
            "Megatron-LM are 1 and `most_recent`, so that who sets nothing gets them."
        ),
        to_do=("Set the history to 1024 and the algorithm to `max`, or take a recipe with current scaling.",),
    )

    FP8_WGRAD_IGNORED = Row(
        "fp8-wgrad-ignored",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="What shall keep the weight's gradient out of FP8 does nothing",
        meaning=(
            "`--no-fp8-wgrad`, or `override_linear_precision`, asks for products in higher precision. Transformer "
            "Engine 2.0 took that away, and other recipes than the delayed one never had it. No product is computed "
            "in BF16."
        ),
        evidence=(
            "Run with Transformer Engine's own recipe class, which passes over words that it does not know; "
            "Megatron-LM still hands it over."
        ),
        to_do=(
            "Take it out. To compute one product in BF16, write an experiment:",
            "    ckpttool fp8 plan --help",
        ),
    )

    FP8_SETTING_IGNORED = Row(
        "fp8-setting-ignored",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A setting of FP8 is never looked at",
        meaning=(
            "`fp8_interval` since Transformer Engine 1.8; margin, history and algorithm with any recipe but the "
            "delayed one; a word that the class DelayedScaling does not know. The run goes on as if it were not "
            "there."
        ),
        evidence="Read in Transformer Engine and Megatron-LM, and run with the recipe classes.",
        to_do=("Take it out, or take the recipe that it is for.",),
    )

    FP8_BF16_LAYERS_REFUSED = Row(
        "fp8-bf16-layers-refused",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="First and last layers in BF16 stop delayed scaling",
        meaning="`first_last_layers_bf16` goes with every recipe but the delayed one.",
        evidence="Read in Megatron-LM core_v0.12 and later, which stop with a ValueError at the start.",
        to_do=("Take another recipe, or leave all layers in FP8.",),
    )

    FP8_BF16_LAYERS_NONE = Row(
        "fp8-bf16-layers-none",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="The switch for layers in BF16 leaves no layer in BF16",
        meaning="`first_last_layers_bf16` is on, and both counts of layers are 0: every layer is computed in FP8.",
        evidence="Read in Megatron-LM core_v0.12 to 2026-08, where both are 1 unless they are set.",
        to_do=("Set `num_layers_at_start_in_bf16` and `num_layers_at_end_in_bf16`.",),
    )

    FP8_E4M3_GRADIENTS = Row(
        "fp8-e4m3-gradients",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Gradients in E4M3 share one scale a tensor",
        meaning=(
            "With one scale for a whole tensor, E4M3 makes everything zero that is smaller than the largest value by "
            "2^18.8; E5M2 keeps it down to 2^32.8. Gradients are spread wider than that."
        ),
        evidence="From the formats. With a scale for each block, E4M3 has range enough.",
        to_do=(
            (
                "Set the format to `hybrid`: gradients in E5M2, all else in E4M3. Or take the recipe `blockwise` or "
                "`mxfp8`."
            ),
        ),
    )

    FP8_HYBRID_BLOCKS = Row(
        "fp8-hybrid-blocks",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Gradients in E5M2 although each block has its scale",
        meaning=(
            "E5M2 has 2 bits of mantissa where E4M3 has 3. Its range is of little use where a block of 32 or 128 "
            "values has a scale of its own."
        ),
        evidence="Read in Transformer Engine, whose recipes of blocks default to E4M3.",
        to_do=("Set the format to `e4m3`.",),
    )

    FP8_MARGIN = Row(
        "fp8-margin",
        weights=(NOTE, SUSPECT),
        group="Rules about FP8",
        headline="The margin of the scale cuts off or wastes binades",
        meaning=(
            "A margin of −k makes the largest values saturate, all within a factor of 2^k; one of +k leaves the top k "
            "binades of the format empty, so that more small values become zero."
        ),
        evidence="From the formula of the scale.",
        to_do=("Set it to 0.",),
    )

    FP8_INF_FREEZES_SCALE = Row(
        "fp8-inf-freezes-scale",
        weights=(NOTE, SUSPECT),
        group="Rules about FP8",
        headline="One infinite value freezes a delayed scale",
        meaning=(
            "Where the history holds an infinite value, the scale stays as it was until that value has left it: up to "
            "as many steps as the history is long. Nothing says so."
        ),
        evidence=(
            "Read in Transformer Engine's kernel of delayed scaling. It weighs more where the trainer's own check for "
            "NaN is off."
        ),
        to_do=(
            "Leave the check for NaN on, and look for steps whose gradient was not finite:",
            "    ckpttool replay LOG --policy nan",
        ),
    )

    FP8_AMAX_PER_GROUP = Row(
        "fp8-amax-per-group",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The largest value is not shared by all ranks",
        meaning="`tp_only_amax_red`, or `reduce_amax: False`: ranks that hold the same tensor scale it differently.",
        evidence="Read in Transformer Engine and Megatron-LM, where a wrong group once made a large training diverge.",
        to_do=("Share it over all ranks, unless that was measured and is too slow.",),
    )

    FP8_FAST_ACCUMULATION = Row(
        "fp8-fast-accumulation",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Sums are kept in about 14 bits",
        meaning=(
            "Tensor cores of Hopper sum products of FP8 in an accumulator of about 14 bits, unless partial sums are "
            "moved to one of 32. Transformer Engine's current scaling leaves that out in the forward product, and so "
            "does torchao with `use_fast_accum`."
        ),
        evidence="Read in both; the error of nearly 2 % at sums of 4096 products is DeepSeek-V3's.",
        to_do=("Take the recipe `blockwise`, or set `use_fast_accum` to False, where that is too coarse.",),
    )

    FP8_ATTENTION = Row(
        "fp8-attention",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Attention is computed in FP8, which is a beta feature",
        meaning=(
            "The products inside attention are in FP8 as well as those of the linear layers: the scores, their softmax "
            "and the sum of the values, whose sizes differ more than those of weights and activations."
        ),
        evidence="Transformer Engine's documentation calls it beta.",
        to_do=("Switch it off first where the loss is worse from the start.",),
    )

    FP8_OUTPUT_LAYER = Row(
        "fp8-output-layer",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The output layer is computed in FP8, too",
        meaning=(
            "The layer that makes logits is among those in FP8. Its errors go into the loss directly, and it is a "
            "small part of the time."
        ),
        evidence=(
            "Published recipes, and the defaults of Megatron-LM and torchtitan's examples, keep it in higher precision."
        ),
        to_do=("Add `output` to `filter_fqns`, or set `fp8_output_proj` to False.",),
    )

    FP8_SUBSTRING = Row(
        "fp8-substring",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A pattern for one layer also picks its successors",
        meaning=(
            "`layers.1` is a part of the names of the layers 10 to 19. Such a pattern is searched for anywhere in a "
            "name."
        ),
        evidence="Run with nvdlfw-inspect; read in torchtitan (`filter_fqns`) and Megatron-LM (matchers).",
        to_do=("Close it with a dot: `layers.1.`, in a pattern that is a regular expression `layers\\\\.1\\\\.`",),
    )

    FP8_EMULATE_DROPS_RECIPE = Row(
        "fp8-emulate-drops-recipe",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="The emulation and the recipe do not go together",
        meaning=(
            "With `emulate`, torchtitan either passes over the emulation or over the recipe, as its version has it."
        ),
        evidence=(
            "Read in torchtitan v0.2.2, which takes the recipe, and in 2026-08, which takes torchao's default instead: "
            "one scale a tensor, gradients in E5M2."
        ),
        to_do=("Take `emulate` out on a device that has FP8; elsewhere take out the recipe.",),
    )

    FP8_MX_FLOOR = Row(
        "fp8-mx-floor",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Scales of blocks are rounded down, so that values saturate",
        meaning=(
            "The OCP's standard takes the power of two below: the largest values of every sixth block of Gaussian "
            "values saturate, by up to 14 %. Others round up."
        ),
        evidence="Run with torchao. Training with it can diverge (arXiv 2506.08027).",
        to_do=("Take `RCEIL`: the recipe `mxfp8_rceil`, in older versions `mxfp8_cublas_rceil`.",),
    )

    FP8_OPTIMIZER_STATE = Row(
        "fp8-optimizer-state",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The optimizer keeps its moments in FP8",
        meaning="`exp_avg_dtype` or `exp_avg_sq_dtype` is FP8: small second moments become zero.",
        evidence="Read in Megatron-LM.",
        to_do=(
            "See what that loses of a checkpoint that has them in higher precision:",
            "    ckpttool fp8 probe --optimizer",
        ),
    )

    TE_DEBUG_NOT_WIRED = Row(
        "te-debug-not-wired",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Nobody reads this config of debug features",
        meaning="Megatron-LM's own scripts never start nvdlfw-inspect: such a config does nothing there.",
        evidence="Read in Megatron-LM core_v0.11 to 2026-08. Megatron-Bridge starts it.",
        to_do=("Train by Megatron-Bridge, or by a script of your own that calls `debug_api.initialize`.",),
    )

    TE_DEBUG_OVERLAP = Row(
        "te-debug-overlap",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Two sections pick the same layer",
        meaning=(
            "Each layer may be picked by one enabled section, whatever the features in them are: two that leave each "
            "other alone are refused as well."
        ),
        evidence=(
            "Run: nvdlfw-inspect stops with a ValueError. Without names of layers (`--layers`) usual ones are tried."
        ),
        to_do=("Narrow one of the patterns, or put the features into one section.",),
    )

    TE_DEBUG_TWO_MODIFIERS = Row(
        "te-debug-two-modifiers",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Two features change the same tensor of the same product",
        meaning=(
            "FakeQuant and PerTensorScaling in one section, with a product and a tensor in common: both would change "
            "it, and the second has nothing of what the first was given."
        ),
        evidence="Run: Transformer Engine stops with an AssertionError.",
        to_do=("Take one of them out, in a file of its own if both are wanted.",),
    )

    TE_DEBUG_EXACT_NAMES = Row(
        "te-debug-exact-names",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Exact names stop at the first other layer",
        meaning=(
            "`exact_layer_names` is asked about every layer of the model, and stops the run at the first one that it "
            "does not name. So it can only be used where it names them all."
        ),
        evidence="Read in nvdlfw-inspect 0.2.2, and run.",
        to_do=("Write `layer_name_regex_pattern` with `^` and `$`.",),
    )

    TE_DEBUG_FAKEQUANT_MX = Row(
        "te-debug-fakequant-mx",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="FakeQuant fails with a format of blocks",
        meaning="The formats MXFP8E4M3 and MXFP8E5M2 are taken from the config, and fail when the first tensor comes.",
        evidence="Read in Transformer Engine v2.4 to 2026-08: a text is passed where a type belongs.",
        to_do=("Take FP8E4M3 or FP8E5M2.",),
    )

    TE_DEBUG_NEEDS_DELAYED = Row(
        "te-debug-needs-delayed",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="PerTensorScaling has no delayed scale to replace",
        meaning=(
            "The feature puts a current scale in the place of a delayed one. With another recipe it stops the run."
        ),
        evidence=(
            "Read in Transformer Engine, which asserts it; the recipe is told by the other files that were given."
        ),
        to_do=("Take it out, or give the files of the run that it is for.",),
    )

    TE_DEBUG_UNKNOWN = Row(
        "te-debug-unknown",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A word in a config of debug features is not known",
        meaning=(
            "A product, tensor, feature, namespace or key that nobody knows; a section without `enabled` or `layers`; "
            "no section that is enabled."
        ),
        evidence="Run with nvdlfw-inspect and Transformer Engine's features: all but an unknown tensor stop the run.",
        to_do=(
            (
                "Write it as the finding says. A feature of your own is known where its folder is given to "
                "`debug_api.initialize`."
            ),
        ),
    )

    TE_DEBUG_EMPTY = Row(
        "te-debug-empty",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="An enabled section does nothing, and plain FP8 runs",
        meaning="Every feature of the section has `enabled: False`, or its pattern picks none of the layers.",
        evidence="Run: nothing is said, and an experiment with it measures plain FP8.",
        to_do=(
            "Enable the feature, or mend the pattern; the names are in the debug log of an earlier run:",
            "    ckpttool fp8 lint debug.yaml --layers debug.log",
        ),
    )

    TE_DEBUG_DEPRECATED = Row(
        "te-debug-deprecated",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="A feature is called by its old name",
        meaning=(
            "DisableFP8GEMM and DisableFP8Layer are called DisableQuantizationGEMM and DisableQuantizationLayer now."
        ),
        evidence=(
            "Read in Transformer Engine 2.13 and later, where the old names still do the same and warn. Said only "
            "where --te-version tells that the version is one of these."
        ),
        to_do=("Write the new name, unless an older version has to read it.",),
    )
