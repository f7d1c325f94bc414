"""Graphs of ONNX operators, made by computing with their tensors as with the arrays of numpy."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from dask_nrbfn.sources.files import optional_package

if TYPE_CHECKING:
    import onnx

# Versions of 2020: not every runtime supports later ones, which are not needed.
_OPSETS, _IR_VERSION = {"": 13, "ai.onnx.ml": 2}, 7

OWN = "nrbfn/"
"""The prefix of tensors that are neither inputs nor outputs."""


class Graph:
    """A graph that operators are added to; its numbers are float64 or float32.

    dtype, outer: of constants, which `widen` changes, and of inputs and outputs.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype, self.outer = dtype, dtype
        self._onnx = optional_package("onnx", "onnx")
        self.proto = self._onnx.GraphProto(name="dask_nrbfn")

    def _described(self, name: str, dtype: DTypeLike, *width: int) -> Any:
        """Return the type of an input or output; the number of rows may be any number."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, ("rows", *width))

    def input(self, name: str, width: int, dtype: DTypeLike | None = None) -> Any:
        """Return an input (rows, width), by default of the type of the graph."""
        self.proto.input.append(self._described(name, dtype or self.outer, width))
        return Tensor(self, name)

    def output(self, name: str, of: "Tensor", *width: int, dtype: DTypeLike | None = None) -> None:
        """Add an output (rows,) or (rows, width), by default of the type of the input."""
        self.node("Identity", of if dtype else self.cast(of, self.outer), output=name)
        self.proto.output.append(self._described(name, dtype or self.outer, *width))

    def cast(self, of: "Tensor", dtype: DTypeLike) -> Any:
        """Return a tensor as another type."""
        return self.node("Cast", of, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def widen(self, of: "Tensor") -> Any:
        """Return a tensor as float64, in which the rest of the graph computes."""
        self.dtype = np.dtype(np.float64)
        return self.cast(of, self.dtype)

    @contextmanager
    def constants_of(self, dtype: DTypeLike) -> Iterator[None]:
        """Let constants have another type within the block."""
        kept, self.dtype = self.dtype, np.dtype(dtype)
        try:
            yield
        finally:
            self.dtype = kept

    def constant(self, values: ArrayLike, dtype: DTypeLike | None = None) -> Any:
        """Return a constant; values beyond the range of its type become infinite."""
        name = f"{OWN}constant_{len(self.proto.initializer)}"
        with np.errstate(over="ignore"):
            array = np.asarray(values).astype(dtype or self.dtype)
        self.proto.initializer.append(self._onnx.numpy_helper.from_array(array, name))
        return Tensor(self, name)

    def node(self, operator: str, *operands: Any, output: str = "", **attributes: Any) -> Any:
        """Return the result of an ONNX operator; operands that are no tensors become constants."""
        tensors = [each if isinstance(each, Tensor) else self.constant(each) for each in operands]
        name = output or f"{OWN}{operator}_{len(self.proto.node)}"
        names = [tensor.name for tensor in tensors]
        node = self._onnx.helper.make_node(operator, names, [name], name, **attributes)
        self.proto.node.append(node)
        return Tensor(self, name)

    def model(self, card: dict[str, Any]) -> "onnx.ModelProto":
        """Return the checked model of the graph; its card has a JSON text for each entry."""
        helper = self._onnx.helper
        domains = sorted({node.domain for node in self.proto.node})
        model = helper.make_model(
            self.proto,
            opset_imports=[helper.make_opsetid(each, _OPSETS[each]) for each in domains],
            ir_version=_IR_VERSION,
            producer_name="dask_nrbfn",
            producer_version=version("dask-nrbfn"),
        )
        helper.set_model_props(model, {name: json.dumps(each) for name, each in card.items()})
        self._onnx.checker.check_model(model, full_check=True)
        return model


class Tensor(NDArrayOperatorsMixin):
    """A tensor of a graph; functions of numpy return another tensor for it, and ignore ``out``."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        operator = _OPERATORS[ufunc]
        if isinstance(operator, str):
            return self.graph.node(operator, *inputs)
        return operator(*inputs)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        return self.__array_ufunc__(function, "__call__", *inputs)

    def _extreme(self, operator: str, *, axis: int, keepdims: bool) -> Any:
        return self.graph.node(operator, self, axes=[axis], keepdims=int(keepdims))

    min = partialmethod(_extreme, "ReduceMin")
    max = partialmethod(_extreme, "ReduceMax")

    def sum(self, *, axis: int, keepdims: bool) -> Any:
        """Return the sum along an axis."""
        axes = self.graph.constant([axis], np.int64)
        return self.graph.node("ReduceSum", self, axes, keepdims=int(keepdims))

    def argmax(self, *, axis: int, keepdims: bool) -> Any:
        """Return the index of the first largest number along an axis, int64."""
        return self.graph.node("ArgMax", self, axis=axis, keepdims=int(keepdims))


_OPERATORS: dict[Callable[..., Any], str | Callable[..., Tensor]] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.negative: "Neg",
    np.absolute: "Abs",
    np.matmul: "MatMul",
    np.maximum: "Max",
    np.minimum: "Min",
    # Clip of ONNX has one limit for all columns.
    np.clip: lambda x, low, high: np.minimum(np.maximum(x, low), high),
    np.sqrt: "Sqrt",
    np.square: lambda x: x * x,
    np.exp: "Exp",
    # onnxruntime 1.20 has no cosine of float64.
    np.cos: lambda x: 1.0 - 2.0 * np.square(np.sin(0.5 * x)),
    np.sin: "Sin",
    np.floor: "Floor",
    np.isnan: "IsNaN",
    np.log: "Log",
    np.log1p: lambda x: np.log(1.0 + x),
    np.less: "Less",
    np.greater: "Greater",
    np.equal: "Equal",
    np.where: "Where",
}
