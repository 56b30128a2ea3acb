"""Findings of the FP8 checks: in configs, in saves, and between two runs."""

from __future__ import annotations

from ckpttool.core.findings import DAMAGE, NOTE, SUSPECT, UNKNOWN, Row, Rows


class Fp8Code(metaclass=Rows):
    """Findings of the FP8 checks: in configs, in saves, and between two runs."""

    FP8_SCALE_MISSING = Row(
        "fp8-scale-missing",
        weights=(NOTE, DAMAGE),
        group="Training in FP8",
        headline="An FP8 weight has no scale",
        meaning=(
            "An 8-bit weight consists of codes and a scale. Without the scale, all its values are wrong by an "
            "unknown factor. It is a note if no weight of the checkpoint has a scale, because the weights may have "
            "been cast without scales."
        ),
        evidence=(
            "`X.weight_scale_inv` or `X.weight_scale` is looked up for `X.weight`, in the same file and in the other "
            "files of the checkpoint."
        ),
        to_do=("Restore the file with the scales, or convert the checkpoint again.",),
    )

    FP8_SCALE_SHAPE = Row(
        "fp8-scale-shape",
        weights=(DAMAGE,),
        group="Training in FP8",
        headline="The scale of an FP8 weight has an impossible shape",
        meaning=(
            "A weight has a single scale, one per row, or one per block. A scale with a different shape belongs to "
            "another weight, or the block size differs from the recorded one."
        ),
        evidence=(
            "The shapes are compared; blocks are 128 x 128, or `quantization_config.weight_block_size` in config.json."
        ),
        to_do=("Check whether config.json belongs to this checkpoint, and convert it again.",),
    )

    FP8_SCALE_INVALID = Row(
        "fp8-scale-invalid",
        weights=(DAMAGE,),
        group="Training in FP8",
        headline="Scales of an FP8 weight are zero, negative or not finite",
        meaning="Every value with such a scale becomes zero, changes its sign, or is not finite.",
        evidence="Every scale is read.",
        to_do=("Convert the checkpoint again from one of higher precision; otherwise use an earlier one.",),
    )

    FP8_RANGE_UNUSED = Row(
        "fp8-range-unused",
        weights=(NOTE,),
        group="Training in FP8",
        headline="Blocks of an FP8 weight do not use the upper range of the format",
        meaning=(
            "A scale maps the largest value of its block close to the format's largest. Otherwise small values are "
            "lost unnecessarily: the scale is older than the weight, or belongs to another weight."
        ),
        evidence="The largest code of each block is below a quarter of the format's largest.",
        to_do=("Convert again from the weights of higher precision, if they still exist.",),
    )

    SWIGLU_ALIGNED = Row(
        "swiglu-aligned",
        weights=(NOTE,),
        group="Training in FP8",
        headline="The gate and up weights of a SwiGLU become parallel",
        meaning=(
            "A unit with parallel gate and up weights squares its input: its output has outliers that a delayed "
            "scale does not foresee. FP8 training runs have diverged because of this after hundreds of billions of "
            "tokens, without any earlier sign."
        ),
        evidence=(
            "For each hidden unit the gain is λ = |g||u|(1 + ρ)/2, where ρ is the cosine of its two rows. The "
            "largest gain is at least four times the median; with new weights this factor is 1.1."
        ),
        to_do=(
            (
                "Watch it over the next checkpoints. If it grows, compute the product after the SwiGLU in BF16, or "
                "give it a separate scale."
            ),
        ),
    )

    FP8_LR_DIFFERS = Row(
        "fp8-lr-differs",
        weights=(UNKNOWN,),
        group="Training in FP8",
        headline="The two runs were trained with different learning rates",
        meaning=(
            "At more than 1 % of the steps that both logs show, the learning rates differ by more than 1 %. A "
            "different schedule affects the loss more than FP8 does, so the comparison is not conclusive."
        ),
        evidence=(
            "Both logs show the learning rate of each step. A schedule that depends on the total number of steps "
            "changes with that number."
        ),
        to_do=("Start the candidate again with the baseline's schedule, and end the run early in another way.",),
    )

    FP8_INTERVAL_DIFFERS = Row(
        "fp8-interval-differs",
        weights=(UNKNOWN,),
        group="Training in FP8",
        headline="The two logs have different logging intervals",
        meaning=(
            "Many trainers print the mean loss since the previous line. A mean over ten steps and the value of one "
            "step are not comparable, even at the same step."
        ),
        evidence="The usual number of steps between two lines of each log.",
        to_do=("Log both runs at the same interval.",),
    )

    FP8_HISTORY_SHORT = Row(
        "fp8-history-short",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Delayed scaling uses only the most recent step",
        meaning=(
            "A delayed scale comes from the largest values of earlier steps. With a history of one step, or "
            "`most_recent`, one step with small values makes the scale too large for the next, which then "
            "overflows."
        ),
        evidence=(
            "From the code of Transformer Engine. Its own defaults are a history of 1024 steps and `max`; those "
            "of Megatron-LM are 1 and `most_recent`, and they apply if nothing is set."
        ),
        to_do=("Set the history to 1024 and the algorithm to `max`, or use a recipe with current scaling.",),
    )

    FP8_WGRAD_IGNORED = Row(
        "fp8-wgrad-ignored",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A setting to keep the weight gradient out of FP8 has no effect",
        meaning=(
            "`--no-fp8-wgrad`, or `override_linear_precision`, is intended to compute products in higher precision. "
            "Transformer Engine 2.0 removed it, and only the delayed recipe ever had it. No product is computed in "
            "BF16."
        ),
        evidence=(
            "Run with Transformer Engine's own recipe class, which ignores unknown arguments; Megatron-LM still "
            "passes it on."
        ),
        to_do=(
            "Remove it. To compute one product in BF16, write an experiment:",
            "    ckpttool fp8 plan --help",
        ),
    )

    FP8_SETTING_IGNORED = Row(
        "fp8-setting-ignored",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="An FP8 setting is ignored",
        meaning=(
            "`fp8_interval` since Transformer Engine 1.8; margin, history and algorithm with any recipe except "
            "delayed scaling; or an argument that the class DelayedScaling does not have. The run behaves as if the "
            "setting were not there."
        ),
        evidence="From the code of Transformer Engine and Megatron-LM, and runs of the recipe classes.",
        to_do=("Remove it, or use the recipe to which it belongs.",),
    )

    FP8_BF16_LAYERS_REFUSED = Row(
        "fp8-bf16-layers-refused",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="First and last layers in BF16 stop delayed scaling",
        meaning="`first_last_layers_bf16` works with every recipe except delayed scaling.",
        evidence="From the code of Megatron-LM core_v0.12 and later, which stop with a ValueError at the start.",
        to_do=("Use another recipe, or leave all layers in FP8.",),
    )

    FP8_BF16_LAYERS_NONE = Row(
        "fp8-bf16-layers-none",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="The setting for layers in BF16 leaves no layer in BF16",
        meaning="`first_last_layers_bf16` is on, and both numbers of layers are 0: every layer is computed in FP8.",
        evidence="From the code of Megatron-LM core_v0.12 to 2026-08, in which both are 1 unless they are set.",
        to_do=("Set `num_layers_at_start_in_bf16` and `num_layers_at_end_in_bf16`.",),
    )

    FP8_E4M3_GRADIENTS = Row(
        "fp8-e4m3-gradients",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Gradients in E4M3 share one scale per tensor",
        meaning=(
            "With one scale per tensor, E4M3 turns values into zero if they are smaller than the largest by a factor "
            "of 2^18.8; E5M2 represents values down to a factor of 2^32.8. Gradients have a wider range than that."
        ),
        evidence="From the formats. With a scale per block, E4M3 has enough range.",
        to_do=(
            (
                "Set the format to `hybrid`: gradients in E5M2, everything else in E4M3. Or use the recipe "
                "`blockwise` or `mxfp8`."
            ),
        ),
    )

    FP8_HYBRID_BLOCKS = Row(
        "fp8-hybrid-blocks",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Gradients are in E5M2 although each block has its own scale",
        meaning=(
            "E5M2 has 2 mantissa bits, E4M3 has 3. Its range is of little use if a block of 32 or 128 values has "
            "its own scale."
        ),
        evidence="From the code of Transformer Engine, whose block recipes default to E4M3.",
        to_do=("Set the format to `e4m3`.",),
    )

    FP8_MARGIN = Row(
        "fp8-margin",
        weights=(NOTE, SUSPECT),
        group="Rules about FP8",
        headline="The margin of the scale saturates or wastes binades",
        meaning=(
            "A margin of −k saturates all values within a factor of 2^k of the largest. A margin of +k leaves the "
            "top k binades of the format empty, so more small values become zero."
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
            "While the history contains an infinite value, the scale silently stays unchanged, for up to as "
            "many steps as the history has entries."
        ),
        evidence=(
            "From Transformer Engine's kernel of delayed scaling. It is more severe if the trainer's own check for "
            "NaN is off."
        ),
        to_do=(
            "Leave the check for NaN on, and look for steps whose gradient was not finite:",
            "    ckpttool log replay LOG --policy nan",
        ),
    )

    FP8_AMAX_PER_GROUP = Row(
        "fp8-amax-per-group",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The largest value is not shared by all ranks",
        meaning="`tp_only_amax_red`, or `reduce_amax: False`: ranks with the same tensor scale it differently.",
        evidence=(
            "From the code of Transformer Engine and Megatron-LM, in which a wrong group once made a large "
            "training diverge."
        ),
        to_do=("Share it over all ranks, unless measurements show that this is too slow.",),
    )

    FP8_FAST_ACCUMULATION = Row(
        "fp8-fast-accumulation",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Sums are accumulated in about 14 bits",
        meaning=(
            "Tensor cores of Hopper sum FP8 products in an accumulator of about 14 bits, unless partial sums are "
            "moved to a 32-bit one. Transformer Engine's current scaling does not do this in the forward product, "
            "nor does torchao with `use_fast_accum`."
        ),
        evidence=(
            "From the code of both libraries; the error of nearly 2 % for sums of 4096 products is from DeepSeek-V3."
        ),
        to_do=("Use the recipe `blockwise`, or set `use_fast_accum` to False, if that is too coarse.",),
    )

    FP8_ATTENTION = Row(
        "fp8-attention",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="Attention is computed in FP8, a beta feature",
        meaning=(
            "In addition to the linear layers, the products inside attention are computed in FP8: the scores, their "
            "softmax and the sum of the values. Their magnitudes vary more than those of weights and activations."
        ),
        evidence="Transformer Engine's documentation calls it beta.",
        to_do=("If the loss is worse from the start, switch it off first.",),
    )

    FP8_OUTPUT_LAYER = Row(
        "fp8-output-layer",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The output layer is computed in FP8",
        meaning=(
            "The layer that computes logits is in FP8. Its errors affect the loss directly, and it takes only a "
            "small part of the time."
        ),
        evidence=(
            "Published recipes, the defaults of Megatron-LM and torchtitan's examples keep it in higher precision."
        ),
        to_do=("Add `output` to `filter_fqns`, or set `fp8_output_proj` to False.",),
    )

    FP8_SUBSTRING = Row(
        "fp8-substring",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A pattern for one layer also matches others",
        meaning=(
            "`layers.1` is a part of the names of the layers 10 to 19. The pattern may match at any position in a name."
        ),
        evidence="Run with nvdlfw-inspect; from the code of torchtitan (`filter_fqns`) and Megatron-LM (matchers).",
        to_do=("End the pattern with a dot: `layers.1.`, in a regular expression `layers\\.1\\.`",),
    )

    FP8_EMULATE_DROPS_RECIPE = Row(
        "fp8-emulate-drops-recipe",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="The emulation and the recipe cannot be used together",
        meaning="With `emulate`, torchtitan ignores either the emulation or the recipe, depending on its version.",
        evidence=(
            "From the code of torchtitan v0.2.2, which uses the recipe, and of 2026-08, which uses torchao's "
            "default instead: one scale per tensor, gradients in E5M2."
        ),
        to_do=("Remove `emulate` on a device with FP8; elsewhere remove the recipe.",),
    )

    FP8_MX_FLOOR = Row(
        "fp8-mx-floor",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Block scales are rounded down, so values saturate",
        meaning=(
            "The OCP standard uses the power of two below: the largest values of every sixth block of Gaussian "
            "values saturate, by up to 14 %. Other implementations round up."
        ),
        evidence="Run with torchao. Training with it can diverge (arXiv 2506.08027).",
        to_do=("Use `RCEIL`: the recipe `mxfp8_rceil`, in older versions `mxfp8_cublas_rceil`.",),
    )

    FP8_OPTIMIZER_STATE = Row(
        "fp8-optimizer-state",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="The optimizer stores its moments in FP8",
        meaning="`exp_avg_dtype` or `exp_avg_sq_dtype` is FP8: small second moments become zero.",
        evidence="From the code of Megatron-LM.",
        to_do=(
            "To measure the loss of precision with a checkpoint whose moments have higher precision:",
            "    ckpttool fp8 probe --optimizer",
        ),
    )

    TE_DEBUG_NOT_WIRED = Row(
        "te-debug-not-wired",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="The config of debug features is not read",
        meaning="Megatron-LM's own scripts never start nvdlfw-inspect, so such a config has no effect there.",
        evidence="From the code of Megatron-LM core_v0.11 to 2026-08. Megatron-Bridge starts it.",
        to_do=("Train with Megatron-Bridge, or with your own script that calls `debug_api.initialize`.",),
    )

    TE_DEBUG_OVERLAP = Row(
        "te-debug-overlap",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Two sections match the same layer",
        meaning=(
            "Each layer may match only one enabled section, whatever its features: two sections with independent "
            "features are also refused."
        ),
        evidence=(
            "nvdlfw-inspect was run, and stops with a ValueError. Without layer names (`--layers`), common names "
            "are tried."
        ),
        to_do=("Narrow one of the patterns, or put the features into one section.",),
    )

    TE_DEBUG_TWO_MODIFIERS = Row(
        "te-debug-two-modifiers",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Two features change the same tensor of the same product",
        meaning=(
            "FakeQuant and PerTensorScaling are in one section, with a product and a tensor in common: both would "
            "change it, and the second would not see the input of the first."
        ),
        evidence="Transformer Engine was run, and stops with an AssertionError.",
        to_do=("Remove one of them; if both are needed, put it into a separate file for another run.",),
    )

    TE_DEBUG_EXACT_NAMES = Row(
        "te-debug-exact-names",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="Exact layer names stop the run at the first unlisted layer",
        meaning=(
            "`exact_layer_names` is checked for every layer of the model, and stops the run at the first layer "
            "that it does not name. It works only if it names all of them."
        ),
        evidence="From the code of nvdlfw-inspect 0.2.2, and from a run with it.",
        to_do=("Write `layer_name_regex_pattern` with `^` and `$`.",),
    )

    TE_DEBUG_FAKEQUANT_MX = Row(
        "te-debug-fakequant-mx",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="FakeQuant fails with a block format",
        meaning="The formats MXFP8E4M3 and MXFP8E5M2 are accepted in the config, and fail at the first tensor.",
        evidence="From the code of Transformer Engine v2.4 to 2026-08: a string is passed instead of a type.",
        to_do=("Use FP8E4M3 or FP8E5M2.",),
    )

    TE_DEBUG_NEEDS_DELAYED = Row(
        "te-debug-needs-delayed",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="PerTensorScaling has no delayed scale to replace",
        meaning="The feature replaces a delayed scale by a current one. With another recipe it stops the run.",
        evidence="From the code of Transformer Engine, which asserts it; the recipe is in the other given files.",
        to_do=("Remove it, or give the files of the run to which it belongs.",),
    )

    TE_DEBUG_UNKNOWN = Row(
        "te-debug-unknown",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="A config of debug features has an unknown name",
        meaning=(
            "An unknown product, tensor, feature, namespace or key; a section without `enabled` or `layers`; or no "
            "enabled section."
        ),
        evidence=(
            "Run with nvdlfw-inspect and Transformer Engine's features: every error except an unknown tensor "
            "stops the run."
        ),
        to_do=(
            (
                "Write it as shown in the finding. A custom feature is known if its folder is passed to "
                "`debug_api.initialize`."
            ),
        ),
    )

    TE_DEBUG_EMPTY = Row(
        "te-debug-empty",
        weights=(SUSPECT,),
        group="Rules about FP8",
        headline="An enabled section has no effect, and plain FP8 runs",
        meaning="Every feature of the section has `enabled: False`, or its pattern matches none of the layers.",
        evidence="In a run nothing is reported, and an experiment with the section measures plain FP8.",
        to_do=(
            "Enable the feature, or correct the pattern; the names are in the debug log of an earlier run:",
            "    ckpttool fp8 lint debug.yaml --layers debug.log",
        ),
    )

    TE_DEBUG_DEPRECATED = Row(
        "te-debug-deprecated",
        weights=(NOTE,),
        group="Rules about FP8",
        headline="A feature has its old name",
        meaning=(
            "DisableFP8GEMM and DisableFP8Layer are now called DisableQuantizationGEMM and DisableQuantizationLayer."
        ),
        evidence=(
            "From the code of Transformer Engine 2.13 and later, in which the old names still work with a warning. "
            "Reported only if --te-version names one of these versions."
        ),
        to_do=("Write the new name, unless an older version has to read it.",),
    )
