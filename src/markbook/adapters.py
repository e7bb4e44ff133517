"""Low-rank adapters: put into a model, and added to its weights again."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from markbook.errors import MarkbookError, suggestion
from markbook.recipe import LoraRecipe


def add_adapters(model: PreTrainedModel, lora: LoraRecipe, seed: int) -> None:
    """Put low-rank adapters into a model, in place, and freeze everything else.

    The model computes what it did before: each adapter's second factor begins at zero. The first
    factors follow from `seed`; the caller's random state is left as it was.

    Raises `MarkbookError` where PEFT is missing or a target is no linear layer of the model, or
    stands for its experts as well.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import Linear, LoraLayer
    except ImportError:
        raise MarkbookError(
            f"model.lora.rank = {lora.rank} needs PEFT, which is not installed; "
            "pip install 'markbook[peft]', or set it to 0."
        ) from None
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=_targets(model, lora.target_modules),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about experts, which are refused below
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    # PEFT takes `down_proj` and the like for the experts too, which are no linear layers.
    if any(isinstance(m, LoraLayer) and not isinstance(m, Linear) for m in model.modules()):
        raise MarkbookError(
            "model.lora.target_modules = "
            f"{list(lora.target_modules)} reaches the experts of this model, which adapters are "
            "not made for; name linear layers of its attention, such as 'o_proj'."
        )


def _targets(model: PreTrainedModel, names: tuple[str, ...]) -> str | list[str]:
    if names == ("all-linear",):
        return "all-linear"
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    }
    for name in names:
        if name not in linear:
            raise MarkbookError(
                f"model.lora.target_modules names {name!r}, but the model's linear layers are "
                f"{', '.join(sorted(linear))}{suggestion(name, linear)}."
            )
    if not names:
        raise MarkbookError("model.lora.target_modules is empty; give names, or 'all-linear'.")
    head = model.get_output_embeddings()
    if model.config.tie_word_embeddings and any(
        module is head and name.rpartition(".")[2] in names
        for name, module in model.named_modules()
    ):
        raise MarkbookError(
            "model.lora.target_modules names the output layer, whose weights this model shares "
            "with its embedding; leave it out."
        )
    return list(names)


def is_adapted(model: PreTrainedModel) -> bool:
    """Say whether a model has adapters in it."""
    return any(".lora_" in name for name, _ in model.named_parameters())


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of the plain model, adapters added: `W + alpha / rank * B A`.

    Source: arXiv 2106.09685, eq. 3. The sum is made in float32 and rounded once to the type of
    `W`. The model is left as it is.
    """
    from peft.tuners.lora import LoraLayer

    # A tied weight is in the dictionary under each of its names.
    weights = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            layer: Any = module  # its parts are typed as plain modules
            for adapter, scaling in layer.scaling.items():
                product = (
                    layer.lora_B[adapter].weight.float() @ layer.lora_A[adapter].weight.float()
                )
                change = scaling * (product.T if layer.fan_in_fan_out else product)
                weight = weights[f"{name}.weight"]
                weights[f"{name}.weight"] = (weight.float() + change).detach().to(weight.dtype)
    return weights
