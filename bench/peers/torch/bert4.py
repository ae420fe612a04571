"""A BERT encoder in torch: 4 layers, hidden 768, 12 heads, FFN 3072, sequence 128, batch 8, AdamW.

Token table 1024 x 768 plus positions, layer norm, four post-norm layers (GELU with erf, no
dropout), a head of 128 classes on every token, softmax cross-entropy. One fused projection makes
q, k and v; attention is `scaled_dot_product_attention`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=8, steps=8, warmup=3)

import torch
from torch import nn
from torch.nn import functional

LAYERS, HIDDEN, HEADS, FFN, LENGTH, VOCABULARY, CLASSES = 4, 768, 12, 3072, 128, 1024, 128

torch.manual_seed(1)
torch.set_num_threads(args.threads)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, FFN)
        self.down = nn.Linear(FFN, HIDDEN)
        self.ffn_norm = nn.LayerNorm(HIDDEN)

    def forward(self, x):
        batch = x.shape[0]
        qkv = self.qkv(x).view(batch, LENGTH, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        mixed = mixed.transpose(1, 2).reshape(batch, LENGTH, HIDDEN)
        x = self.attention_norm(x + self.out(mixed))
        return self.ffn_norm(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Parameter(torch.randn(LENGTH, HIDDEN) * 0.02)
        self.norm = nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, tokens, labels):
        x = self.norm(self.tokens(tokens) + self.positions)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


model = Bert()
# Eager is the default: compiling gains less than 2 %, which is noise.
run_model = torch.compile(model) if args.compile else model
adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def step(batch):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
        loss = run_model(*batch)
    adamw.zero_grad(set_to_none=True)
    loss.backward()
    adamw.step()


shape = (args.batch_size, LENGTH)
batches = [(torch.randint(VOCABULARY, shape), torch.randint(CLASSES, shape)) for _ in range(8)]
common.measure("train/bert4_bf16" if args.bf16 else "train/bert4", args, step, batches)
