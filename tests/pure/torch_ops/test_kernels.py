"""The epilogues behind fused norms: what they mean, and that they are kernels."""

import numpy as np
import pytest
from tests.nightly import nightly

pytest.importorskip("torch")

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.codegen import rowwise
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program import algorithms
from stretto.program.epilogues import Named, ValueForm, evaluate, resolve
from stretto.torch.operators import norms, norms_fp8

ROWS, HIDDEN = 3, 256
FORMS = {
    "residual": ValueForm.ELEMENT,
    "weight": ValueForm.ROW,
    "eps": ValueForm.SCALAR,
    "scale": ValueForm.SCALAR,
}
NORMS = (
    norms.add_norm,
    norms.norm,
    norms_fp8.add_norm_fp8,
    norms_fp8.add_norm_static_fp8,
)


def spec_of(function, dtype="bfloat16"):
    """Return an epilogue as the operators call it."""
    given = {}
    for name in function.graph.inputs[1:]:
        kind = {"eps": "", "scale": "float32"}.get(name, dtype)
        given[name] = Named(name, kind, FORMS[name])
    return resolve(function.graph, given, dtype=dtype, row=HIDDEN)


@pytest.mark.parametrize("function", nightly(NORMS, 2), ids=lambda f: f.name)
@pytest.mark.parametrize(
    "name", nightly(["all_reduce/two_shot", "all_reduce/one_shot"], 2)
)
def test_a_norm_is_a_kernel(function, name):
    """NVRTC takes it, for the processor of an H200."""
    pytest.importorskip("cuda.bindings.nvrtc")
    spec = spec_of(function)
    program = verify(algorithms.get(name).build(2))
    schedule = Schedule.parse("push packets blocks=4 threads=64")
    plan = verify_plan(lower(program, schedule), program)
    share = rowwise.shared_by(spec, plan.value.schedule.blocks, ROWS)

    kernel = kernel_of(plan, rank=0, dtype="bfloat16", epilogue=spec, share=share)

    assert compile_kernel(kernel, arch=(9, 0))


def due(y, residual, weight):
    """Return the norm and the sum in float64."""
    s = y.astype(np.float64) + residual
    return s / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-6) * weight, s


def test_norms_mean_what_they_say():
    """Each output, of numbers drawn at random, beside float64."""
    rng = np.random.default_rng(3)
    y, residual = rng.normal(size=(2, ROWS, HIDDEN)).astype(np.float32)
    weight = rng.normal(size=HIDDEN).astype(np.float32)
    normed, total = due(y, residual, weight)
    made = evaluate(
        spec_of(norms.add_norm, "float32"), y.ravel(), [residual.ravel(), weight, 1e-6]
    )
    bare = evaluate(spec_of(norms.norm, "float32"), y.ravel(), [weight, 1e-6])

    np.testing.assert_allclose(made[0].reshape(y.shape), normed, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(made[1].reshape(y.shape), total, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        bare[0].reshape(y.shape), due(y, 0, weight)[0], rtol=2e-5, atol=1e-5
    )


def test_8_bits_have_the_largest_number_in_every_row():
    """A row's scale makes its largest number 448, which is the byte 0x7E."""
    rng = np.random.default_rng(4)
    y, residual = rng.normal(size=(2, ROWS, HIDDEN)).astype(np.float32)
    weight = rng.normal(size=HIDDEN).astype(np.float32)
    normed, _ = due(y, residual, weight)
    given = [residual.ravel(), weight, 1e-6]
    spec = spec_of(norms_fp8.add_norm_fp8, "float32")
    q, scale, _ = evaluate(spec, y.ravel(), given)
    static = spec_of(norms_fp8.add_norm_static_fp8, "float32")
    known, _ = evaluate(static, y.ravel(), [*given, np.full(1, 1e-3, np.float32)])

    want = np.abs(normed).max(-1) / 448
    np.testing.assert_allclose(scale, want, rtol=1e-5)
    assert [0x7E] * ROWS == list((q.reshape(ROWS, -1) & 0x7F).max(-1))
    assert (known & 0x7F).max() == 0x7E
