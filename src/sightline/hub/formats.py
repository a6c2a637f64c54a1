"""Write a graph of torch.export as ONNX or as a package that AOTInductor compiles, with metadata inside."""

import operator
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Proxy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from sightline.hub.compiler import choose_compiler
from sightline.hub.trace import AXES
from sightline.util.errors import InputError
from sightline.util.files import reason, write_result

# What is written, with the axes that have any length by default: a package for one size is faster.
SUFFIXES: dict[str, tuple[str, ...]] = {".onnx": tuple(AXES), ".pt2": ("batch",)}
INPUT = "images"
MOST = 2**31 - 1  # elements of a tensor with indices of 32 bits


def require_onnx() -> None:
    """Reject an installation without the packages that ONNX files need.

    Raises:
        InputError: names what to install.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise InputError(f"ONNX files need {', '.join(missing)}: pip install 'sightline[export]'")


def write_onnx(program: ExportedProgram, path: Path, metadata: Mapping[str, str], outputs: Sequence[str]) -> int:
    """Write an ONNX file and return its opset.

    Raises:
        InputError: ONNX has no form for an operation of the model, or the file cannot be written.
    """
    import onnx

    try:
        made = torch.onnx.export(
            program, (), dynamo=True, input_names=[INPUT], output_names=list(outputs), optimize=False, verbose=False
        )  # fmt: skip
    except torch.onnx.errors.OnnxExporterError as error:
        raise InputError(f"this model cannot be exported to ONNX ({reason(error)}); give a .pt2 file") from error
    assert made is not None
    _simplify(made.model)
    proto = made.model_proto
    name_axes(proto)
    onnx.helper.set_model_props(proto, dict(metadata))
    write_result(path, lambda temporary: onnx.save(proto, str(temporary)), "file")
    return next(int(item.version) for item in proto.opset_import if not item.domain)


def _simplify(model: Any) -> None:
    """Fold constants and drop what is there twice, in place.

    The optimizer of torch.onnx also looks for patterns, in time quadratic in the number of nodes: minutes for a large
    model. What it finds makes no difference to onnxruntime.
    """
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    ):
        step(model)


def name_axes(proto: Any) -> None:
    """Call the dynamic axes batch, height and width, also in the sizes of outputs and of what is between."""
    shape = proto.graph.input[0].type.tensor_type.shape.dim
    names = {shape[axis].dim_param: name for name, axis in AXES.items() if shape[axis].dim_param}
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = pattern.sub(lambda match: names[match[0]], dim.dim_param)


def flatten_rows(program: ExportedProgram) -> None:
    """Give linear layers of tokens (B, N, C) their input as a matrix, in place.

    Inductor takes a view for that. If N is a product of symbols, it does not see that the view is a matrix as it lies
    in memory, and copies the tokens; `as_strided` says so. With a number for N nothing is copied, and the layer stays
    as it is; so does one whose input is not contiguous.
    """
    graph, aten = program.graph, torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        x, *parameters = node.args
        tokens = x.meta["val"]
        symbols = any(isinstance(size, SymInt) for size in tokens.shape[1:-1])
        if tokens.ndim < 3 or not symbols or not tokens.is_contiguous():
            continue
        with graph.inserting_before(node):
            sizes = [
                graph.call_function(aten.sym_size.int, (x, axis)) if isinstance(size, SymInt) else size
                for axis, size in enumerate(tokens.shape[:-1])
            ]
            rows = reduce(lambda a, b: graph.call_function(operator.mul, (a, b)), sizes)
            channels = tokens.shape[-1]
            matrix = graph.call_function(aten.as_strided.default, (x, [rows, channels], [channels, 1]))
            product = graph.call_function(aten.linear.default, (matrix, *parameters))
            made = graph.call_function(aten.view.default, (product, [*sizes, node.meta["val"].shape[-1]]))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    program.graph_module.recompile()


def skip_views(program: ExportedProgram) -> None:
    """Give the kernel of `gather_patches` the tokens that its map was made from, in place.

    The views from tokens to a map and back end where they began. If sizes are symbols, Inductor does not see that, and
    copies the tokens.
    """
    views = (torch.ops.aten.transpose.int, torch.ops.aten.flatten.using_ints, torch.ops.aten.permute.default,
             torch.ops.aten.reshape.default)  # fmt: skip
    for node in program.graph.nodes:
        if getattr(node.target, "name", str)() == "sightline::gather_patches":
            given = source = node.args[0]
            while source.target in views:
                source = source.args[0]
            first, last = source.meta["val"], given.meta["val"]
            if first.shape == last.shape and first.is_contiguous() and last.is_contiguous():
                node.replace_input_with(given, source)
    program.graph_module.recompile()


def limit_numbers(program: ExportedProgram, most: int = MOST) -> bool:
    """Let the graph reject images for which a tensor would have more than `most` elements, in place.

    Returns:
        Whether it has the limit; not if the example that was traced exceeds it.

    If sizes are symbols, Inductor's kernels divide by them to index each element, and in 64 bits these divisions take
    longer than anything else. With a limit, 32 bits are enough.
    """
    graph = program.graph
    images = next(node for node in graph.nodes if node.name == program.graph_signature.user_inputs[0])
    tensors = [value for node in graph.nodes if isinstance(value := node.meta.get("val"), Tensor)]
    symbols: list[Any] = [count for x in tensors if isinstance(count := x.numel(), SymInt)]
    counts = {count.node.expr: count.node.hint for count in symbols}
    largest = max(counts.values(), default=0)
    if largest > most:
        return False
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "call_function")):
        sizes = {
            size.node.expr: Proxy(graph.call_function(torch.ops.aten.sym_size.int, (images, axis)))
            for axis, size in enumerate(images.meta["val"].shape)
            if isinstance(size, SymInt)
        }
        for count, example in counts.items():
            if example >= largest / 8:  # others are far from the limit when these reach it
                few: Any = sympy_interp(PythonReferenceAnalysis, sizes, count <= most)
                graph.call_function(torch.ops.aten._assert_scalar.default, (few.node, "smaller or fewer images"))
    program.graph_module.recompile()
    return True


def write_package(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    """Compile the graph for the device that it was traced on, and write code and weights as one .pt2 file.

    Raises:
        InputError: there is no C++ compiler, the graph cannot be compiled, or the file cannot be written.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor import config as inductor
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    skip_views(program)
    flatten_rows(program)
    configs: dict[str, Any] = {"aot_inductor.metadata": dict(metadata)}
    if any(tensor.is_cuda for tensor in program.state_dict.values()):
        # By itself, Inductor keeps maps channels last, as the models have them, only where no size is a symbol.
        configs["force_layout_optimization"] = True
        configs["assume_32bit_indexing"] = limit_numbers(program)
    usual = [command for command in inductor.cpp.cxx if command]
    if sys.platform == "linux" and (compiler := choose_compiler(usual)):
        configs["cpp.cxx"] = (None, compiler)

    def write(temporary: Path) -> None:
        with TemporaryDirectory() as folder:  # where the compiler writes too; on a full disk torch's writer would abort
            made = Path(folder) / path.name
            aoti_compile_and_package(program, package_path=str(made), inductor_configs=configs)
            copyfile(made, temporary)

    try:
        write_result(path, write, "file")
    except RuntimeError as error:
        cause = getattr(error, "inner_exception", error)
        if isinstance(cause, InvalidCxxCompiler | CppCompileError):
            raise InputError(
                f"{path.name}: a compiled package needs a working C++ compiler such as g++ ({reason(cause)}); install "
                f"one, or give an .onnx file"
            ) from error
        raise InputError(
            f"{path.name}: cannot be compiled or written ({reason(cause)}); free some space, try fewer dynamic axes, "
            f"or give an .onnx file"
        ) from error


def check_dynamic(names: str | Collection[str]) -> tuple[str, ...]:
    """The names of dynamic axes in the order of `AXES`; given as a text, they have commas between them.

    Raises:
        InputError: there is no such axis.
    """
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if tuple(names) == ("none",):
        return ()
    for name in names:
        if name not in AXES:
            raise InputError(f"dynamic: expected some of {', '.join(AXES)}, or none; got {name!r}")
    return tuple(name for name in AXES if name in names)
