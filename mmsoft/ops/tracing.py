"""Whether a graph is being made that other programs shall run."""
import torch


def exporting() -> bool:
    """Whether operations are being recorded by ``torch.export`` or ``torch.onnx.export``.

    Autograd functions, fused kernels and choices by value have no place in such a graph; every operator of
    :mod:`mmsoft.ops` that has them writes its plain formula instead. Before torch 2.7 a recording does not know whether
    it is made by ``torch.export`` or by ``torch.compile``, and both get the formula.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    compiler = getattr(torch, 'compiler', None)
    for question in ('is_exporting', 'is_compiling'):
        if hasattr(compiler, question):
            return getattr(compiler, question)()
    return False
