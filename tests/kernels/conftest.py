import pytest
import torch
from kernel_oracle import BACKENDS, CHUNKED, FAMILIES


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=CHUNKED)
def chunked_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def one_thread() -> None:
    # The tensors are tiny: more threads only wait for each other.
    torch.set_num_threads(1)
