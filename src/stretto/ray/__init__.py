"""Stretto behind Ray: actors' collectives, and tensors that go from actor to actor.

    ray.init(runtime_env={"worker_process_setup_hook": "stretto.ray.enable"})
    stretto.ray.enable()  # here, too
    create_collective_group(actors, 4, [0, 1, 2, 3], backend="STRETTO")
    ... @ray.method(tensor_transport="STRETTO") ...

Both are found by name where Ray asks for a backend, so programs change one word.
"""

from __future__ import annotations

from stretto.errors import MissingExtraError
from stretto.ray.named import NAME

__all__ = ["NAME", "enable"]


def enable() -> None:
    """Let Ray find both in this process: in the driver, and in each actor's.

    Again, it does nothing. The driver calls it, and each actor's process, by the
    `worker_process_setup_hook` of a `runtime_env` or by itself.
    """
    try:
        from ray.util.collective import backend_registry
    except ImportError as e:
        raise MissingExtraError("stretto.ray needs Ray: pip install ray") from e
    from stretto.ray.group import RayGroup
    from stretto.ray.transport import register

    registry = backend_registry._global_registry
    if not registry.is_registered(NAME):
        backend_registry.register_collective_backend(NAME, RayGroup)
    register()
