"""What `import stretto` offers is frozen: a change shows in a golden file."""

import inspect

import stretto


def spelled(name):
    value = getattr(stretto, name)
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"class {name}({bases})"
    if inspect.isfunction(value):
        return f"def {name}{inspect.signature(value)}"
    return f"{name}: {type(value).__name__}"


def test_public_names(golden):
    """Names, bases and signatures of the package are what they were."""
    golden("\n".join(spelled(name) for name in stretto.__all__))


def test_public_methods_of_a_communicator(golden):
    """The methods that programs call on every rank are what they were."""
    methods = [
        f"{name}{inspect.signature(value)}"
        for name, value in inspect.getmembers(stretto.Communicator, inspect.isfunction)
        if not name.startswith("_")
    ]

    golden("\n".join(methods))
