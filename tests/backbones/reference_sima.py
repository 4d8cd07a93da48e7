"""SimA's three architectures as functions of a published state dict: dense, plain, one image size at a time."""

import math

import torch
import torch.nn.functional as F


def attention(q, k, v, heads, eps=1e-12):
    """(B, n, C), (B, m, C), (B, m, C) to (B, n, C)."""
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    q, k = (F.normalize(t, p=1, dim=-2, eps=eps) for t in (q, k))
    return ((q @ k.transpose(-2, -1)) @ v).transpose(1, 2).flatten(2)


class Network:
    """Layers by their published names."""

    def __init__(self, state_dict):
        self.state_dict = state_dict

    def linear(self, name, x):
        return F.linear(x, self.state_dict[f'{name}.weight'], self.state_dict[f'{name}.bias'])

    def conv(self, name, x, **kwargs):
        return F.conv2d(x, self.state_dict[f'{name}.weight'], self.state_dict.get(f'{name}.bias'), **kwargs)

    def norm(self, name, x, eps=1e-6):
        return F.layer_norm(x, x.shape[-1:], self.state_dict[f'{name}.weight'], self.state_dict[f'{name}.bias'], eps)

    def batch_norm(self, name, x):
        mean, var, weight, bias = (
            self.state_dict[f'{name}.{key}'] for key in ('running_mean', 'running_var', 'weight', 'bias')
        )
        return F.batch_norm(x, mean, var, weight, bias)

    def mlp(self, name, x, act=F.gelu):
        return self.linear(f'{name}.fc2', act(self.linear(f'{name}.fc1', x)))

    def qkv(self, name, x):
        return self.linear(f'{name}.qkv', x).chunk(3, dim=2)

    def logits(self, cls):
        return self.linear('head', cls)


def deit(state_dict, x, heads):
    """Block outputs as maps, class token, logits."""
    net, maps = Network(state_dict), []
    x = net.conv('patch_embed.proj', x, stride=16)
    hw, channels = x.shape[-2:], x.size(1)
    grid = state_dict['pos_embed'][:, 1:].transpose(1, 2).reshape(1, channels, 14, 14)
    if tuple(hw) != (14, 14):
        grid = F.interpolate(grid, size=hw, mode='bicubic', align_corners=False)
    pos_embed = torch.cat([state_dict['pos_embed'][:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
    x = torch.cat([state_dict['cls_token'].expand(len(x), 1, channels), x.flatten(2).transpose(1, 2)], dim=1)
    x = x + pos_embed
    for i in range(12):
        block = f'blocks.{i}'
        y = attention(*net.qkv(f'{block}.attn', net.norm(f'{block}.norm1', x)), heads)
        x = x + net.linear(f'{block}.attn.proj', y)
        x = x + net.mlp(f'{block}.mlp', net.norm(f'{block}.norm2', x))
        maps.append(x[:, 1:].transpose(1, 2).reshape(len(x), channels, *hw))
    cls = net.norm('norm', x)[:, 0]
    return maps, cls, net.logits(cls)


def cvt(state_dict, x, heads=(1, 3, 6), depths=(1, 2, 10)):
    """Stage outputs as maps, class token, logits."""
    net, maps = Network(state_dict), []
    for stage in range(3):
        stride, padding = (2, 1) if stage else (4, 2)
        x = net.conv(f'stage{stage}.patch_embed.proj', x, stride=stride, padding=padding)
        (batch, channels), hw = x.shape[:2], x.shape[-2:]
        x = net.norm(f'stage{stage}.patch_embed.norm', x.flatten(2).transpose(1, 2), eps=1e-5)
        extra = 0
        if stage == 2:
            x, extra = torch.cat([state_dict['stage2.cls_token'].expand(batch, 1, channels), x], dim=1), 1
        for i in range(depths[stage]):
            block = f'stage{stage}.blocks.{i}'
            y = net.norm(f'{block}.norm1', x, eps=1e-5)
            image = y[:, extra:].transpose(1, 2).reshape(batch, channels, *hw)
            qkv = []
            for name, stride in (('q', 1), ('k', 2), ('v', 2)):
                z = net.conv(f'{block}.attn.conv_proj_{name}.conv', image, stride=stride, padding=1, groups=channels)
                z = net.batch_norm(f'{block}.attn.conv_proj_{name}.bn', z).flatten(2).transpose(1, 2)
                qkv.append(net.linear(f'{block}.attn.proj_{name}', torch.cat([y[:, :extra], z], dim=1)))
            x = x + net.linear(f'{block}.attn.proj', attention(*qkv, heads[stage]))
            y = net.norm(f'{block}.norm2', x, eps=1e-5)
            x = x + net.mlp(f'{block}.mlp', y, act=lambda t: t * (1.702 * t).sigmoid())
        cls, x = x[:, :extra], x[:, extra:].transpose(1, 2).reshape(batch, channels, *hw)
        maps.append(x)
    cls = net.norm('norm', cls[:, 0], eps=1e-5)
    return maps, cls, net.logits(cls)


def xcit(state_dict, x, heads, depth, patch_size, norm_tokens):
    """Block outputs as maps, class token, logits."""
    net, maps = Network(state_dict), []
    steps = int(math.log2(patch_size))
    for i in range(steps):
        x = net.conv(f'patch_embed.proj.{2 * i}.0', x, stride=2, padding=1)
        x = net.batch_norm(f'patch_embed.proj.{2 * i}.1', x)
        x = F.gelu(x) if i < steps - 1 else x
    (batch, channels), hw = x.shape[:2], x.shape[-2:]
    x = (x + net.conv('pos_embeder.token_projection', fourier(hw).to(x))).flatten(2).transpose(1, 2)
    for i in range(depth):
        block = f'blocks.{i}'
        gammas = [state_dict[f'{block}.gamma{j}'] for j in (1, 2, 3)]
        y = attention(*net.qkv(f'{block}.attn', net.norm(f'{block}.norm1', x)), heads)
        x = x + gammas[0] * net.linear(f'{block}.attn.proj', y)
        y = net.norm(f'{block}.norm3', x).transpose(1, 2).reshape(batch, channels, *hw)
        y = net.batch_norm(
            f'{block}.local_mp.bn', F.gelu(net.conv(f'{block}.local_mp.conv1', y, padding=1, groups=channels))
        )
        y = net.conv(f'{block}.local_mp.conv2', y, padding=1, groups=channels)
        x = x + gammas[2] * y.flatten(2).transpose(1, 2)
        x = x + gammas[1] * net.mlp(f'{block}.mlp', net.norm(f'{block}.norm2', x))
        maps.append(x.transpose(1, 2).reshape(batch, channels, *hw))
    x = torch.cat([state_dict['cls_token'].expand(batch, 1, channels), x], dim=1)
    for i in range(2):
        block = f'cls_attn_blocks.{i}'
        y = net.norm(f'{block}.norm1', x)
        attended = net.linear(f'{block}.attn.proj', attention(*net.qkv(f'{block}.attn', y), heads, eps=1e-6)[:, :1])
        x = x + state_dict[f'{block}.gamma1'] * torch.cat([attended, y[:, 1:]], dim=1)
        y = net.norm(f'{block}.norm2', x)
        y = y if norm_tokens else torch.cat([y[:, :1], x[:, 1:]], dim=1)
        mlp = state_dict[f'{block}.gamma2'] * net.mlp(f'{block}.mlp', y[:, :1])
        x = y + torch.cat([mlp, y[:, 1:]], dim=1)
    cls = net.norm('norm', x)[:, 0]
    return maps, cls, net.logits(cls)


def fourier(hw):
    """Position encoding before its projection, (1, 64, H, W), y before x."""
    encoding = torch.empty(1, 64, *hw, dtype=torch.float64)
    for axis, length in enumerate(hw):
        position = torch.arange(1, length + 1, dtype=torch.float64) / (length + 1e-6) * 2 * math.pi
        for i in range(32):
            wave = math.cos if i % 2 else math.sin
            values = torch.tensor([wave(p / 10000 ** (2 * (i // 2) / 32)) for p in position.tolist()])
            encoding[0, 32 * axis + i] = values.unsqueeze(1 - axis).expand(*hw)
    return encoding
