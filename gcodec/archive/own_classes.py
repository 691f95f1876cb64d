"""Dataclasses, named tuples and enumerations in archives: described by names, put together again without their code.

An archive has the name of a class and the names of its fields. What is read never imports a module and never calls a
class: fields are set one by one, and members of an enumeration are looked up.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, Flag
from functools import reduce
from types import MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from ..errors import InvalidArgument, Unsupported
from .mesh_tensors import is_mesh

#: What the kinds of classes are called in errors, by tag.
KINDS = MappingProxyType(
    {
        "dataclass": "dataclass",
        "named_tuple": "named tuple",
        "enum": "member of the enumeration",
        "flag": "combination of the flags",
        "subclass": "tensor of the class",
    }
)
#: What a class may be replaced by, by tag: its objects become dictionaries by field, or names of members.
_PLAIN_KINDS = {"dataclass": dict, "named_tuple": dict, "enum": str, "flag": str}
#: Names from archives are cut after so many characters in errors.
_SHOWN = 200

#: Of a mesh of devices, which archives of distributed tensors need, there is no type without torch.distributed.
Classes = Iterable[Any] | Mapping[str, Any] | None


class ClassEntry(NamedTuple):
    """A class as an archive describes it.

    Attributes:
        module: Name of its module.
        name: Its qualified name in the module.
        fields: The names of its fields; none for an enumeration.
    """

    module: str
    name: str
    fields: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """Module and name in one."""
        return f"{self.module}.{self.name}"

    @classmethod
    def of_json(cls, value: Any) -> ClassEntry:
        """Return the entry that a structure has. Raises ValueError if it is none."""
        module, name, fields = value
        if not all(isinstance(text, str) for text in (module, name, *fields)) or not isinstance(fields, list):
            raise ValueError("a class must be a module, a name and names of fields")
        if len(set(fields)) < len(fields):
            raise ValueError("a field occurs twice in one class")
        return cls(module, name, tuple(fields))


class KnownClasses:
    """The classes that a caller gives, or that its process has imported.

    Args:
        given: Classes, or classes by the full name under which they were saved; among them may be meshes of devices,
            which tensors are distributed over. None for those imported alone.

    Attributes:
        meshes: The meshes of devices.

    Raises:
        InvalidArgument: It is something else.
    """

    def __init__(self, given: Classes = None) -> None:
        self._by_name: dict[str, type] = {}
        self._by_short_name: dict[str, list[type]] = {}
        self.meshes: list[Any] = []
        if given is None:
            return
        named = isinstance(given, Mapping)
        try:
            classes: list[Any] = list(given.values() if isinstance(given, Mapping) else given)
        except TypeError:
            classes = [given]
            named = True  # to be refused
        self.meshes = [kind for kind in classes if not isinstance(kind, type) and is_mesh(kind)]
        classes = [kind for kind in classes if not any(kind is mesh for mesh in self.meshes)]
        if not all(isinstance(kind, type) for kind in classes) or (named and not isinstance(given, Mapping)):
            raise InvalidArgument(
                "classes must be a list of classes, such as [Config], or a dictionary of classes by the names under "
                f"which they were saved, such as {{'train.Config': Config}}, not {given!r:.80}"
            )
        if isinstance(given, Mapping):
            self._by_name = {name: kind for name, kind in given.items() if isinstance(kind, type)}
            return
        for kind in classes:
            self._by_name[f"{kind.__module__}.{kind.__qualname__}"] = kind
            self._by_short_name.setdefault(kind.__qualname__, []).append(kind)

    def find(self, tag: str, entry: ClassEntry) -> type:
        """Return a class of the kind that a tag says.

        Args:
            tag: One of ``KINDS``.
            entry: What the archive says of it.

        Returns:
            The class; or ``dict`` or ``str``, where the caller wants one in its place.

        Raises:
            Unsupported: It is not known, of another kind, or has other fields.
        """
        found: type | None = self._given(entry)
        if found is None and tag != "subclass":  # of which a function is called, so that the caller must name it
            found = _imported(entry)
        name = entry.full_name[:_SHOWN]
        if found is None:
            raise Unsupported(_unknown(tag, entry))
        plain: Any = _PLAIN_KINDS.get(tag)
        if found is plain:
            return found
        problem = _PROBLEMS[tag](found)
        if problem:
            raise Unsupported(f"the state has a {KINDS[tag]} {name}, but {found.__qualname__} {problem}")
        if tag in ("dataclass", "named_tuple") and entry.fields != fields_of(tag, found):
            raise Unsupported(
                f"{name} has other fields than when it was saved: it had {_listed(entry.fields)}, and has "
                f"{_listed(fields_of(tag, found))} now; classes={{{name!r}: dict}} gives a dictionary"
            )
        return found

    def _given(self, entry: ClassEntry) -> type | None:
        """Return the class that the caller gave for an entry: one of its full name, or the only one of its name, for a
        script's ``__main__`` has another name where it is imported."""
        found = self._by_name.get(entry.full_name)
        alike = self._by_short_name.get(entry.name, [])
        return alike[0] if found is None and len(alike) == 1 else found


def _imported(entry: ClassEntry) -> type | None:
    """Return the class of an entry where its module has been imported.

    Attributes are looked up where modules and classes keep them: to ask for them may import more (PEP 562).
    """
    found: Any = sys.modules.get(entry.module)
    for part in entry.name.split("."):
        if isinstance(found, ModuleType):
            found = ModuleType.__getattribute__(found, "__dict__").get(part)
        elif isinstance(found, type):
            found = type.__getattribute__(found, "__dict__").get(part)
        else:
            return None
    return found if isinstance(found, type) else None


def _unknown(tag: str, entry: ClassEntry) -> str:
    name, short = entry.full_name[:_SHOWN], entry.name.rpartition(".")[2][:_SHOWN]
    start = f"the state has a {KINDS[tag]} {name}"
    if tag == "subclass":
        return f"{start}, which a function of its class puts together: pass classes=[{short}] if you trust it"
    plain = _PLAIN_KINDS[tag].__name__
    what = "a dictionary of its fields" if plain == "dict" else "names of its members"
    where = (
        "it was that of a script, so" if entry.module == "__main__" else f"import {entry.module[:_SHOWN]} before, or"
    )
    return (
        f"{start}, whose class is not known here: {where} pass classes=[{short}]; "
        f"classes={{{name!r}: {plain}}} gives {what}"
    )


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return f"({text[:_SHOWN]}{' ...' if len(text) > _SHOWN else ''})"


def tag_of(value: Any) -> str | None:
    """Return the tag of an object of a class of one's own, but of tensors; None for any other."""
    if isinstance(value, Enum):
        return "enum"
    if isinstance(value, tuple) and _is_named_tuple(type(value)):
        return "named_tuple"
    return "dataclass" if dataclasses.is_dataclass(value) and not isinstance(value, type) else None


def entry_of(tag: str, kind: type, where: str) -> ClassEntry:
    """Return what an archive has of a class.

    Args:
        tag: One of ``KINDS``.
        where: The place of an object of it, for errors.

    Raises:
        InvalidArgument: An object of the class could not be put together again without its code.
    """
    if problem := _PROBLEMS[tag](kind):
        raise InvalidArgument(
            f"{where}: a {KINDS[tag]} {kind.__module__}.{kind.__qualname__} cannot be saved, for it {problem}; pass "
            "what it holds, as in dataclasses.asdict(value)"
        )
    return ClassEntry(kind.__module__, kind.__qualname__, fields_of(tag, kind))


def fields_of(tag: str, kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or named tuple; none for other classes."""
    if tag == "dataclass":
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields) if tag == "named_tuple" else ()


def member_names(value: Enum, where: str) -> str | list[str]:
    """Return the name of a member of an enumeration, or the names that a combination of flags is made of. Raises
    InvalidArgument for flags without names."""
    members = type(value).__members__
    name: Any = value._name_  # what Python keeps: a class may have made something else of ``name``
    if members.get(name) is value:
        return str(name)
    names = [str(flag._name_) for flag in value] if isinstance(value, Flag) else []
    if not isinstance(value, Flag) or member_of(type(value), names) != value:
        raise InvalidArgument(f"{where}: {value!r:.80} cannot be saved, for it is no combination of named members")
    return names


def member_of(kind: Any, names: str | Sequence[str]) -> Any:
    """Return a member of an enumeration by name, or a combination of flags. Raises Unsupported if it has none."""
    if kind is str:
        return names if isinstance(names, str) else "|".join(names)
    for name in [names] if isinstance(names, str) else names:
        if name not in kind.__members__:
            raise Unsupported(f"{kind.__module__}.{kind.__qualname__} has no member {name!r:.80} as it had when saved")
    if isinstance(names, str):
        return kind.__members__[names]
    return reduce(operator.or_, (kind.__members__[name] for name in names), kind(0))


def further_attributes(value: Any, fields: Sequence[str], where: str) -> dict[str, Any]:
    """Return the attributes of a dataclass's object that are no fields. Raises InvalidArgument for one that hides a
    function of its class."""
    further = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in fields}
    for name in further:
        if hides_function(type(value), name):
            raise InvalidArgument(f"{where}: the attribute {name!r:.80} cannot be saved, for it hides one of the class")
    return further


def hides_function(kind: type, name: Any) -> bool:
    """Return True for what may not be the name of an attribute from an archive: one that a class uses otherwise."""
    return not isinstance(name, str) or name.startswith("__") or callable(_attribute(kind, name))


def new_dataclass(kind: Any, fields: Mapping[str, Any], further: Mapping[str, Any]) -> Any:
    """Return an object of a dataclass with these attributes; neither the class nor its ``__init__`` is called, lest
    values of a stranger reach code. Raises ValueError for an attribute that it cannot have."""
    if kind is dict:
        return {**fields, **further}
    if any(hides_function(kind, name) or name in fields for name in further):
        raise ValueError("an attribute hides another of its class")
    result = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(result, name, value)  # also of frozen ones, whose own refuses
    if further:
        object.__getattribute__(result, "__dict__").update(further)
    return result


def new_named_tuple(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return a named tuple with these fields; its class is not called."""
    return dict(fields) if kind is dict else tuple.__new__(kind, fields.values())


def _attribute(kind: type, name: str) -> Any:
    """Return what a class has under a name, without asking it or its metaclass; None if nothing."""
    spaces = [type.__getattribute__(base, "__dict__") for base in type.__getattribute__(kind, "__mro__")]
    return next((space[name] for space in spaces if name in space), None)


def _runs_at_end(kind: type) -> bool:
    return _attribute(kind, "__del__") is not None


def _dataclass_problem(kind: type) -> str:
    """Return why an object of a class cannot be put together from its fields; empty if it can."""
    if _attribute(kind, "__dataclass_fields__") is None or issubclass(kind, Enum):
        return "is no dataclass"
    if _runs_at_end(kind):
        return "has __del__, which would run on what a file says"
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.nn.Module):
        return "is a module, of which state_dict() is saved"
    try:
        object.__new__(kind)
    except TypeError as error:  # of classes derived from those written in C, and of abstract ones
        return f"cannot be made without its code: {error}"
    for name in fields_of("dataclass", kind):
        found = _attribute(kind, name)
        if hasattr(type(found), "__set__") and not isinstance(found, MemberDescriptorType):
            return f"has a property in place of the field {name!r}"
    return ""


def _is_named_tuple(kind: type) -> bool:
    fields = _attribute(kind, "_fields")
    return issubclass(kind, tuple) and isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def _named_tuple_problem(kind: type) -> str:
    if not _is_named_tuple(kind):
        return "is no named tuple"
    return "has __del__, which would run on what a file says" if _runs_at_end(kind) else ""


def _enum_problem(kind: type) -> str:
    return "" if issubclass(kind, Enum) else "is no enumeration"


def _flag_problem(kind: type) -> str:
    return "" if issubclass(kind, Flag) else "is no enumeration of flags"


def _subclass_problem(kind: type) -> str:
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Tensor):
        return "is no tensor"
    return "" if hasattr(kind, "__tensor_unflatten__") else "has no __tensor_unflatten__"


_PROBLEMS = {
    "dataclass": _dataclass_problem,
    "named_tuple": _named_tuple_problem,
    "enum": _enum_problem,
    "flag": _flag_problem,
    "subclass": _subclass_problem,
}
