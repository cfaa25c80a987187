"""The least that any implementation moves and computes: one perfect kernel per direction."""

from kernels.cost.accounting import FLOAT32, Kernel, Shape, access


def fewest_kernels(shape: Shape) -> list[Kernel]:
    """Each input is read once and each output written once; products as in the recurrence.

    The recurrence multiplies 2 K V times per token for the write k v^T and 2 K V for the read
    q^T S. Its backward has four products of that size, for dq, dk, dv and the gradient of the
    state, if the states of the forward pass were at hand. The delta rule reads once more, by keys:
    three products, and in its backward six.
    """
    inputs = [access(name, shape.elements("bthk"), shape.input_bytes) for name in "qk"]
    inputs.append(access("v", shape.elements("bthv"), shape.input_bytes))
    gradients = [tensor._replace(name=f"d{tensor.name}") for tensor in inputs]
    if shape.decay_axes is not None:
        decay = access("decay", shape.elements(shape.decay_axes), FLOAT32)
        inputs.append(decay)
        gradients.append(decay._replace(name="d decay"))
    if shape.delta:
        beta = access("beta", shape.elements("bth"), FLOAT32)
        inputs.append(beta)
        gradients.append(beta._replace(name="d beta"))
    output = access("o", shape.elements("bthv"), shape.input_bytes)
    state = access("final state", shape.elements("bhkv"), FLOAT32)
    backward_inputs = [*inputs, output._replace(name="do")]
    if shape.normalize:
        state = access("final state", state.elements + shape.elements("bhk"), FLOAT32)
        backward_inputs.append(output)  # the quotient's gradient needs the quotient
    product = 2.0 * shape.elements("bthkv")
    forward, backward = (3, 6) if shape.delta else (2, 4)
    rate = "matmul_flops" if shape.input_bytes == 2 else "tf32_flops"
    return [
        Kernel("fewest", "forward", tuple(inputs), (output, state), **{rate: forward * product}),
        Kernel(
            "fewest",
            "backward",
            tuple(backward_inputs),
            tuple(gradients),
            **{rate: backward * product},
        ),
    ]
