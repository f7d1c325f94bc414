"""A graph of ONNX operators, made by computing with its tensors as with numpy's arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partialmethod
from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

# Versions of 2020: not every runtime supports later ones, which are not needed.
_OPSET, _IR_VERSION = 13, 7
# Operators on labels and text have their own version number; this one is of 2019.
_ML_DOMAIN, _ML_OPSET = "ai.onnx.ml", 2

# The name of the number of rows, which may be any number.
_BATCH = "rows"
# The prefix of tensors that are neither inputs nor outputs.
_OWN = "nrbfn/"


@dataclass
class Graph:
    """A graph that operators are added to; its numbers are float64 or float32."""

    dtype: np.dtype
    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _constants: list[onnx.TensorProto] = field(default_factory=list)
    _inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    _outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, width: int, dtype: DTypeLike | None = None) -> "Tensor":
        """Return an input (rows, width), by default of the dtype of the graph."""
        self._inputs.append(_described(name, dtype or self.dtype, _BATCH, width))
        return Tensor(self, name)

    def output(self, name: str, of: "Tensor", *width: int, dtype: DTypeLike | None = None) -> None:
        """Add an output (rows,) or (rows, width), by default of the dtype of the graph."""
        self._nodes.append(helper.make_node("Identity", [of.name], [name]))
        self._outputs.append(_described(name, dtype or self.dtype, _BATCH, *width))

    def constant(self, values: ArrayLike, dtype: DTypeLike | None = None) -> "Tensor":
        """Return a constant; values beyond the range of its type become infinite."""
        name = f"{_OWN}constant_{len(self._constants)}"
        with np.errstate(over="ignore"):
            array = np.asarray(values).astype(dtype or self.dtype)
        self._constants.append(numpy_helper.from_array(array, name))
        return Tensor(self, name)

    def node(self, operator: str, *operands: Any, domain: str = "", **attributes: Any) -> "Tensor":
        """Return the result of an ONNX operator; operands that are no tensors become constants."""
        tensors = [each if isinstance(each, Tensor) else self.constant(each) for each in operands]
        name = f"{_OWN}{operator}_{len(self._nodes)}"
        names = [tensor.name for tensor in tensors]
        self._nodes.append(
            helper.make_node(operator, names, [name], name, domain=domain, **attributes)
        )
        return Tensor(self, name)

    def codes(self, texts: "Tensor", of: dict[str, int], *, others: int) -> "Tensor":
        """Return the int64 codes of texts; `others` is the code of texts that `of` lacks."""
        return self.node(
            "LabelEncoder",
            texts,
            domain=_ML_DOMAIN,
            keys_strings=list(of),
            values_int64s=list(of.values()),
            default_int64=others,
        )

    def model(self, card: dict[str, str]) -> onnx.ModelProto:
        """Return the checked model with a model card."""
        graph = helper.make_graph(
            self._nodes, "dask_nrbfn", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        if any(node.domain == _ML_DOMAIN for node in self._nodes):
            opsets.append(helper.make_opsetid(_ML_DOMAIN, _ML_OPSET))
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=_IR_VERSION,
            producer_name="dask_nrbfn",
            producer_version=version("dask-nrbfn"),
        )
        helper.set_model_props(model, card)
        onnx.checker.check_model(model, full_check=True)
        return model


@dataclass(frozen=True, eq=False)
class Tensor(NDArrayOperatorsMixin):
    """A tensor of a graph; functions of numpy return another tensor for it, and ignore ``out``."""

    graph: Graph
    name: str

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self._made(ufunc, inputs) if method == "__call__" else NotImplemented

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        return NotImplemented if options else self._made(function, inputs)

    def _made(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        operator = _OPERATORS.get(function, NotImplemented)
        if isinstance(operator, str):
            return self.graph.node(operator, *inputs)
        return operator if operator is NotImplemented else operator(*inputs)

    def _extreme(self, operator: str, *, axis: int, keepdims: bool) -> "Tensor":
        return self.graph.node(operator, self, axes=[axis], keepdims=int(keepdims))

    min = partialmethod(_extreme, "ReduceMin")
    max = partialmethod(_extreme, "ReduceMax")

    def sum(self, *, axis: int, keepdims: bool) -> "Tensor":
        """Return the sum along an axis."""
        axes = self.graph.constant([axis], np.int64)
        return self.graph.node("ReduceSum", self, axes, keepdims=int(keepdims))

    def argmax(self, *, axis: int, keepdims: bool) -> "Tensor":
        """Return the index of the first largest number along an axis, int64."""
        return self.graph.node("ArgMax", self, axis=axis, keepdims=int(keepdims))

    def astype(self, dtype: DTypeLike) -> "Tensor":
        """Return the tensor as another type."""
        return self.graph.node("Cast", self, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


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
    np.clip: "Clip",
    np.sqrt: "Sqrt",
    np.square: lambda x: x * x,
    np.exp: "Exp",
    np.log: "Log",
    np.log1p: lambda x: np.log(1.0 + x),
    np.cos: "Cos",
    np.floor: "Floor",
    np.sin: "Sin",
    np.isnan: "IsNaN",
    np.less: "Less",
    np.greater: "Greater",
    np.equal: "Equal",
    np.where: "Where",
}


def _described(name: str, dtype: DTypeLike, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )
