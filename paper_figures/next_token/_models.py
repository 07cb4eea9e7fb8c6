"""Language models of the GPT-2 kind: small ones made here, real ones by name or folder, with LoRA or head only."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from dprmt._validation import check_count


def small_gpt2(
    vocabulary: int, *, layers: int = 2, hidden: int = 64, heads: int = 4, length: int = 128, seed: int = 0
) -> torch.nn.Module:
    """A small ``GPT2LMHeadModel`` with random weights, without dropout.

    Parameters
    ----------
    vocabulary : int
        V.
    layers, hidden, heads, length : int
        Number of blocks, width (a multiple of ``heads``), attention heads, longest sequence.
    seed : int
        Of the weights.

    Returns
    -------
    Module
        ``model(input_ids=…).logits`` has shape (B, T, V). Input embedding and head share their weights.

    Raises
    ------
    ParameterError
        If a size is not an integer >= 1, or the seed not one >= 0.

    Examples
    --------
    >>> small_gpt2(50)(input_ids=torch.zeros(1, 7, dtype=torch.int64)).logits.shape
    torch.Size([1, 7, 50])
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=check_count("vocabulary", vocabulary),
        n_layer=check_count("layers", layers),
        n_embd=check_count("hidden", hidden),
        n_head=check_count("heads", heads),
        n_positions=check_count("length", length),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_count("seed", seed, low=0))
        model: torch.nn.Module = GPT2LMHeadModel(config)
    return model


def pretrained_gpt2(name_or_folder: str) -> torch.nn.Module:
    """A pretrained causal language model.

    Parameters
    ----------
    name_or_folder : str
        A name on the model hub ("gpt2", "gpt2-medium") or a local folder.

    Returns
    -------
    Module
        In float32, in evaluation mode: dropout off.

    Examples
    --------
    By name it is ``pretrained_gpt2("gpt2")``, which downloads; from a folder:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small_gpt2(50).save_pretrained(folder)
    ...     model = pretrained_gpt2(folder)
    >>> model(input_ids=torch.zeros(1, 7, dtype=torch.int64)).logits.shape, model.training
    (torch.Size([1, 7, 50]), False)
    """
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(name_or_folder, dtype=torch.float32)
    return model.eval()


def with_lora(model: torch.nn.Module, *, rank: int = 4, alpha: float = 32.0, seed: int = 0) -> torch.nn.Module:
    """LoRA on the attention projections of a GPT-2, everything else frozen.

    Parameters
    ----------
    model : Module
        A GPT-2; changed in place.
    rank : int
        r.
    alpha : float
        Scale; the update is ``alpha/r · BA``.
    seed : int
        Of A; B starts at 0.

    Returns
    -------
    Module
        The peft model, whose trained parameters Opacus knows (they are linear layers).

    Raises
    ------
    ParameterError
        If the rank is not an integer >= 1.

    References
    ----------
    Appendix B of the heavy-tail class imbalance paper on DP-AdamBC, which takes rank and scale from Yu et al.,
    arXiv:2110.06500.

    Examples
    --------
    >>> model = with_lora(small_gpt2(50))
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)  # 2 layers × 4 × (64 + 192)
    2048
    """
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=check_count("rank", rank),
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)  # peft asks transformers 5
        torch.manual_seed(seed)
        adapted: Any = get_peft_model(model, config)
    return adapted


def head_and_features(
    model: torch.nn.Module, ids: torch.Tensor, *, batch: int = 32
) -> tuple[torch.nn.Linear, torch.Tensor]:
    """The output head as a layer of its own, and what the frozen rest of the model feeds it.

    Parameters
    ----------
    model : Module
        A GPT-2 with head (``model.transformer``, ``model.lm_head``); not changed.
    ids : Tensor of int64, shape (n, T)
        The sequences.
    batch : int
        Sequences per forward pass.

    Returns
    -------
    head : Linear
        A copy of the head, no longer tied to the input embedding, without bias.
    features : Tensor, shape (n, T, h)
        Last hidden states.

    Raises
    ------
    ParameterError
        If ``batch`` is not an integer >= 1.

    Examples
    --------
    >>> head, features = head_and_features(small_gpt2(50), torch.zeros(3, 7, dtype=torch.int64))
    >>> head.weight.shape, features.shape
    (torch.Size([50, 64]), torch.Size([3, 7, 64]))
    """
    whole: Any = model
    weight = whole.lm_head.weight.detach()
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    with torch.no_grad():
        head.weight.copy_(weight)
        parts = [whole.transformer(input_ids=part).last_hidden_state for part in ids.split(check_count("batch", batch))]
    return head, torch.cat(parts)
