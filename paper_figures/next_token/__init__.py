"""Next-token prediction: GPT-2-style models on text, with metrics by token frequency (appendix B).

`text_data` and `e2e_data` are tasks for `studies.train_privately`. `HeadData` trains the output head
alone, with per-sample clipping in closed form.
"""

from paper_figures.next_token._head import HeadData as HeadData
from paper_figures.next_token._models import head_and_features as head_and_features
from paper_figures.next_token._models import pretrained_gpt2 as pretrained_gpt2
from paper_figures.next_token._models import small_gpt2 as small_gpt2
from paper_figures.next_token._models import with_lora as with_lora
from paper_figures.next_token._public import byte_pair_tokenizer as byte_pair_tokenizer
from paper_figures.next_token._public import public_lines as public_lines
from paper_figures.next_token._public import train_on_public as train_on_public
from paper_figures.next_token._tokens import TokenData as TokenData
from paper_figures.next_token._tokens import e2e_data as e2e_data
from paper_figures.next_token._tokens import pretrained_encoder as pretrained_encoder
from paper_figures.next_token._tokens import text_data as text_data
from paper_figures.next_token._tokens import word_encoder as word_encoder
from paper_figures.next_token._tokens import word_vocabulary as word_vocabulary

__all__ = [
    "HeadData",
    "TokenData",
    "byte_pair_tokenizer",
    "e2e_data",
    "head_and_features",
    "pretrained_encoder",
    "pretrained_gpt2",
    "public_lines",
    "small_gpt2",
    "text_data",
    "train_on_public",
    "with_lora",
    "word_encoder",
    "word_vocabulary",
]
