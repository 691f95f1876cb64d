"""PTX to C++: every function of a module as one over ``device.h``, statement by statement.

Registers are unsigned numbers of their width, floats their bits. An address of shared memory is an offset in the array
of the kernel. Instructions, modifiers and operands that are not known here are refused: none is translated by half.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.gpu.ptx.syntax import WIDTHS, Function, Module, Parameter, Statement, UnknownPtxError, split_operands

_THREADS = 256
_SPECIAL = {"%tid.x": "thread_of_block()", "%ctaid.x": "block_of_grid()", "%ntid.x": f"{_THREADS}u"}
_SPACES = {"global": "GLOBAL", "shared": "SHARED", "param": "ARGUMENTS"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_CALL_PARAMETER = re.compile(r"(?:\.align \d+ +)?\.[a-z](\d+) +(\w+)(?:\[(\d+)\])?")
_SHUFFLES = {"up": "u", "bfly": "x", "idx": "i"}


class Kernel(NamedTuple):
    """What a launch must know of a kernel: bytes of its arguments and of its shared memory."""

    name: str
    argument_bytes: int
    shared_bytes: int


class _Body:
    """A function's names while it is translated: its registers; parameters, its own and those of its calls, with their
    bytes; the arrays of shared memory that there are; and of these and of functions those that it names."""

    def __init__(self, function: Function, shared: dict[str, int]) -> None:
        own = (*function.parameters, *((function.result,) if function.result else ()))
        self.function, self.shared = function, shared
        self.sizes = {parameter.name: parameter.size for parameter in own}
        self.registers: set[str] = set()
        self.arrays: set[str] = set()
        self.called: set[str] = set()


class _Operation:
    """A statement while it is translated: its word in parts, of which each is taken once, and its operands."""

    def __init__(self, statement: Statement, body: _Body) -> None:
        self.root, *self.modifiers = statement.word.split(".")
        self.statement, self.body, self.operands = statement, body, statement.operands
        self.kind = self.modifiers.pop() if self.modifiers else ""
        self.place = f'"{statement.place}"'

    @property
    def bits(self) -> str:
        return "1" if self.kind == "pred" else self.kind[1:]

    @property
    def unsigned(self) -> str:
        """The type of the same width without a sign."""
        return "pred" if self.kind == "pred" else f"u{self.bits}"

    def refuse(self) -> UnknownPtxError:
        return UnknownPtxError(f"{self.body.function.name}: {self.statement.text}")

    def take(self, *modifiers: str) -> str:
        """Take one of these modifiers, which must be the next one, and return it."""
        if not self.modifiers or self.modifiers[0] not in modifiers:
            raise self.refuse()
        return self.modifiers.pop(0)

    def may_take(self, *modifiers: str) -> str:
        """Take one of these modifiers if it is the next one, and return it."""
        return self.take(*modifiers) if self.modifiers and self.modifiers[0] in modifiers else ""

    def register(self, operand: str) -> str:
        """Return the variable of a register that is written."""
        name = operand.removeprefix("%")
        if name not in self.body.registers:
            raise self.refuse()
        return name

    def value(self, operand: str, kind: str = "") -> str:
        """Return an operand as a number of a type, this statement's if none is named; a float is its bits."""
        kind = kind or self.kind
        name, type_ = operand.removeprefix("%"), c_type(kind)
        if operand in _SPECIAL:
            return f"({type_}){_SPECIAL[operand]}"
        if name in self.body.registers:
            return f"({type_}){name}"
        if real := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", operand):
            return f"({type_})0x{real[1]}u"
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", operand):
            return f"({type_}){int(operand.rstrip('U'), 0) & 2**64 - 1}ull"
        return f"({type_}){self.place_of(operand)}"

    def place_of(self, operand: str) -> str:
        """Return the address of a name, and of bytes after it."""
        name, _, offset = operand.partition("+")
        if name in self.body.shared:  # at 0, for no kernel has two
            self.body.arrays.add(name)
            return f"(uint64_t){int(offset or 0)}"
        if name in self.body.sizes:
            return f"(uint64_t)({name} + {int(offset or 0)})"
        raise self.refuse()

    def address(self, operand: str) -> str:
        """Return the address in brackets; what is added to a register is added in 64 bits or, to one of 32, in 32."""
        inside = operand.strip()[1:-1].strip()
        base, _, offset = inside.partition("+")
        name = base.removeprefix("%")
        if name not in self.body.registers:
            return self.place_of(inside)
        return f"(uint64_t)({name} + {int(offset or 0)})"

    def parameter(self, operand: str, size: int) -> str:
        """Return the place of a parameter that is named in brackets, or nothing if the address is in a register."""
        name, _, offset = operand.strip()[1:-1].strip().partition("+")
        if name not in self.body.sizes:
            return ""
        if not 0 <= int(offset or 0) <= self.body.sizes[name] - size:
            raise self.refuse()
        return f"{name} + {int(offset or 0)}"

    def set(self, operand: str, expression: str) -> str:
        """Return the assignment of an expression to a register."""
        return f"{self.register(operand)} = {expression};"


def c_type(kind: str) -> str:
    """Return the type of C++ for one of PTX; a float's is that of its bits."""
    if kind == "pred":
        return "bool"
    if kind[:1] not in "bsuf" or kind[1:] not in WIDTHS or (kind[0] == "f" and kind != "f32"):
        raise UnknownPtxError(f"the type {kind}")
    return f"{'' if kind[0] == 's' else 'u'}int{kind[1:]}_t"


def _vector(operand: str) -> tuple[str, ...]:
    """Return the operands in braces, or the one without."""
    return split_operands(operand[1:-1]) if operand.startswith("{") else (operand,)


def _move(op: _Operation) -> str:
    target, source = op.operands
    parts = _vector(target if target.startswith("{") else source)
    if len(parts) == 1:
        return op.set(target, op.value(source))
    width = int(op.bits) // len(parts)
    if target.startswith("{"):
        taken = [op.set(part, f"(uint{width}_t)(whole >> {k * width})") for k, part in enumerate(parts) if part != "_"]
        return f"uint{op.bits}_t whole = {op.value(source)}; {' '.join(taken)}"
    pieces = [f"(uint{op.bits}_t){op.value(part, f'u{width}')} << {k * width}" for k, part in enumerate(parts)]
    return op.set(target, " | ".join(pieces))


def _load(op: _Operation) -> str:
    atomic = bool(op.may_take("volatile"))
    space = _SPACES[op.take(*_SPACES)] if op.modifiers and op.modifiers[0] in _SPACES else "GENERIC"
    n = 1 if atomic else int((op.may_take("v2", "v4") or "v1")[1:])
    targets, (_, source), size = _vector(op.operands[0]), op.operands, WIDTHS[op.bits]
    if len(targets) != n:
        raise op.refuse()
    sets = [op.set(target, f"v[{k}]") for k, target in enumerate(targets) if target != "_"]
    if space == "ARGUMENTS" and (parameter := op.parameter(source, n * size)):
        own = [f"taken<{c_type(op.kind)}>({parameter} + {k * size})" for k in range(n)]
        return f"{c_type(op.kind)} v[] = {{{', '.join(own)}}}; {' '.join(sets)}"
    used = op.statement.used or (1 << n * size) - 1
    access = f"read({space}, {op.address(source)}, v, {used}u, {int(atomic)}, {op.place});"
    return f"{c_type(op.kind)} v[{n}]; {access} {' '.join(sets)}"


def _store(op: _Operation) -> str:
    atomic = bool(op.may_take("volatile"))
    space = _SPACES[op.take(*_SPACES)] if op.modifiers and op.modifiers[0] in _SPACES else "GENERIC"
    n = 1 if atomic else int((op.may_take("v2", "v4") or "v1")[1:])
    (target, given), size = op.operands, WIDTHS[op.bits]
    values = [op.value(value) for value in _vector(given)]
    if len(values) != n:
        raise op.refuse()
    if space == "ARGUMENTS":
        parameter = op.parameter(target, n * size)
        if not parameter:
            raise op.refuse()
        return " ".join(f"put({parameter} + {k * size}, {value});" for k, value in enumerate(values))
    access = f"write({space}, {op.address(target)}, v, {int(atomic)}, {op.place});"
    return f"{c_type(op.kind)} v[] = {{{', '.join(values)}}}; {access}"


def _convert(op: _Operation) -> str:
    target = op.modifiers.pop()
    if "f" in target + op.kind:
        raise op.refuse()
    return op.set(op.operands[0], f"({c_type(target)}){op.value(op.operands[1])}")


def _change_address_space(op: _Operation) -> str:
    to, space = op.may_take("to"), op.take(*_SPACES)
    if to and space != "global":
        raise op.refuse()
    address = op.value(op.operands[1])
    return op.set(op.operands[0], f"generic_address_of_shared({address})" if space == "shared" else address)


def _compare(op: _Operation) -> str:
    target, a, b = op.operands
    name = op.take(*_COMPARISONS, *(f"{name}u" for name in _COMPARISONS))
    values = [op.value(a), op.value(b)]
    if op.kind == "f32":
        values = [f"real({value})" for value in values]
    if name in _COMPARISONS:
        return op.set(target, f"{values[0]} {_COMPARISONS[name]} {values[1]}")
    opposite = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}  # which is false if one is not a number
    if name not in opposite or op.kind != "f32":
        raise op.refuse()
    return op.set(target, f"!({values[0]} {opposite[name]} {values[1]})")


def _select(op: _Operation) -> str:
    target, a, b, by = op.operands
    return op.set(target, f"{op.value(by, 'pred')} ? {op.value(a)} : {op.value(b)}")


def _calculate(op: _Operation) -> str:
    """Two numbers of a type to a third; without a sign, for that makes no difference to sums and products."""
    target, a, b = op.operands
    if op.kind == "f32":
        op.take("rn")
        return op.set(target, f"bits_of(real({op.value(a)}) {_OPERATORS[op.root]} real({op.value(b)}))")
    if op.root == "mul" and op.may_take("wide"):
        wide = c_type(f"{op.kind[0]}{2 * int(op.bits)}")
        return op.set(target, f"({wide}){op.value(a)} * ({wide}){op.value(b)}")
    if op.root == "mul":
        op.take("lo")
    kind = op.unsigned
    return op.set(target, f"({c_type(kind)})({op.value(a, kind)} {_OPERATORS[op.root]} {op.value(b, kind)})")


def _multiply_and_add(op: _Operation) -> str:
    op.take("lo")
    a, b, c = (op.value(operand, op.unsigned) for operand in op.operands[1:])
    return op.set(op.operands[0], f"({c_type(op.unsigned)})({a} * {b} + {c})")


def _divide(op: _Operation) -> str:
    if op.kind == "f32":
        return _calculate(op)
    name = {"div": "divided", "rem": "remainder_of"}[op.root]
    return op.set(op.operands[0], f"{name}({op.value(op.operands[1])}, {op.value(op.operands[2])}, {op.place})")


def _order(op: _Operation) -> str:
    a, b, sign = op.value(op.operands[1]), op.value(op.operands[2]), {"min": "<", "max": ">"}[op.root]
    if op.kind == "f32":
        raise op.refuse()
    return op.set(op.operands[0], f"{a} {sign} {b} ? {a} : {b}")


def _shift(op: _Operation) -> str:
    kind = op.kind if op.root == "shr" and op.kind[0] == "s" else op.unsigned
    name = {"shl": "shifted_left", "shr": "shifted_right"}[op.root]
    number, by = op.value(op.operands[1], kind), op.value(op.operands[2], "u32")
    return op.set(op.operands[0], f"{name}<{c_type(kind)}>({number}, {by})")


def _funnel(op: _Operation) -> str:
    name = {"l": "funnel_left", "r": "funnel_right"}[op.take("l", "r")]
    op.take("wrap")
    return op.set(op.operands[0], f"{name}({', '.join(map(op.value, op.operands[1:]))})")


def _insert(op: _Operation) -> str:
    a, b, at, n = op.operands[1:]
    own = (op.value(a, op.unsigned), op.value(b, op.unsigned), op.value(at, "u32"), op.value(n, "u32"))
    return op.set(op.operands[0], f"bits_inserted<{c_type(op.unsigned)}>({', '.join(own)})")


def _of_one(expression: str, real: str = "") -> Callable[[_Operation], str]:
    """Return what translates an instruction with one operand; ``real`` is the expression for a float's bits, ``x``."""

    def translated(op: _Operation) -> str:
        if op.kind == "f32" and not real:
            raise op.refuse()
        chosen = real if op.kind == "f32" else expression
        if op.kind == "f32" and op.root == "sqrt":
            op.take("rn")
        if not chosen:
            raise op.refuse()
        type_ = c_type(op.unsigned if op.kind != "f32" else "u32")
        return f"{type_} x = {op.value(op.operands[1], op.unsigned)}; {op.set(op.operands[0], f'({type_})({chosen})')}"

    return translated


def _atomic(op: _Operation) -> str:
    """``atom``, which returns what was there, and ``red``, which does not."""
    if op.may_take("relaxed"):
        op.take("gpu")
    space, change = _SPACES[op.take("global", "shared")], {"add": "ADD", "or": "OR"}[op.take("add", "or")]
    *target, place, number = op.operands
    if len(target) != (op.root == "atom"):
        raise op.refuse()
    size = WIDTHS[op.bits]
    call = f"change_memory({space}, {change}, {op.address(place)}, {op.value(number, op.unsigned)}, {size}, {op.place})"
    return op.set(target[0], f"({c_type(op.unsigned)}){call}") if target else f"{call};"


def _barrier(op: _Operation) -> str:
    if op.kind == "sync" and op.operands == ("0",) and not op.modifiers:
        return f"wait_for_block({op.place});"
    op.take("warp")
    if op.kind != "sync":
        raise op.refuse()
    return f"wait_for_warp({op.value(op.operands[0], 'u32')}, {op.place});"


def _sleep(op: _Operation) -> str:
    if op.kind != "u32":
        raise op.refuse()
    return f"sleep_a_while({op.place});"


def _vote(op: _Operation) -> str:
    op.take("sync"), op.take("ballot")
    target, is_so, mask = op.operands
    return op.set(target, f"ballot({op.value(is_so, 'pred')}, {op.value(mask, 'u32')}, {op.place})")


def _sum(op: _Operation) -> str:
    op.take("sync"), op.take("add")
    a, mask = (op.value(operand, "u32") for operand in op.operands[1:])
    return op.set(op.operands[0], f"sum_of_warp({a}, {mask}, {op.place})")


def _shuffle(op: _Operation) -> str:
    op.take("sync")
    kind = _SHUFFLES[op.take(*_SHUFFLES)]
    if op.kind != "b32":
        raise op.refuse()
    target, _, predicate = op.operands[0].partition("|")
    number, argument, clamp, mask = map(op.value, op.operands[1:])
    text = op.set(target, f"shuffled('{kind}', {number}, {argument}, {clamp}, {mask}, {op.place})")
    if predicate:
        inside = f"(thread_of_block() & 31) >= {argument}" if kind == "u" else "true"
        text = f"bool inside = {inside}; {text} {op.set(predicate, 'inside')}"
    return text


def _not(op: _Operation) -> str:
    if op.kind == "pred":
        return op.set(op.operands[0], f"!{op.value(op.operands[1])}")
    return _of_one("~x")(op)


def _of_one_word(function: str) -> Callable[[_Operation], str]:
    """Return what translates an instruction with one operand of 32 bits."""

    def translated(op: _Operation) -> str:
        if op.kind != "b32":
            raise op.refuse()
        return op.set(op.operands[0], f"{function}({op.value(op.operands[1])})")

    return translated


def _permute(op: _Operation) -> str:
    if op.kind != "b32":
        raise op.refuse()
    return op.set(op.operands[0], f"bytes_by({', '.join(map(op.value, op.operands[1:]))})")


_TRANSLATORS: dict[str, Callable[[_Operation], str]] = {
    "mov": _move,
    "ld": _load,
    "st": _store,
    "cvt": _convert,
    "cvta": _change_address_space,
    "setp": _compare,
    "selp": _select,
    **dict.fromkeys(("add", "sub", "mul", "and", "or", "xor"), _calculate),
    "mad": _multiply_and_add,
    **dict.fromkeys(("div", "rem"), _divide),
    **dict.fromkeys(("min", "max"), _order),
    **dict.fromkeys(("shl", "shr"), _shift),
    "shf": _funnel,
    "bfi": _insert,
    "prmt": _permute,
    "not": _not,
    "neg": _of_one("0 - x", "x ^ 0x80000000u"),
    "abs": _of_one("", "x & 0x7FFFFFFFu"),
    "sqrt": _of_one("", "bits_of(sqrtf(real(x)))"),
    "popc": _of_one("__builtin_popcountll(x)"),
    "clz": _of_one_word("leading_zeros"),
    "brev": _of_one_word("reversed"),
    **dict.fromkeys(("atom", "red"), _atomic),
    "bar": _barrier,
    "redux": _sum,
    "vote": _vote,
    "nanosleep": _sleep,
    "shfl": _shuffle,
}


def _call(op: _Operation) -> str:
    lists = [own for own in op.operands if own.startswith("(")]
    names = [own for own in op.operands if not own.startswith("(")]
    given = [own for text in lists for own in split_operands(text.strip("() "))]
    if len(names) != 1 or len(lists) > 2 or any(own not in op.body.sizes for own in given):
        raise op.refuse()
    op.body.called.add(names[0])
    return f"{names[0]}({', '.join(given)});"


def _declare(statement: Statement, body: _Body) -> str:
    """Return the declaration of registers, or of a parameter of a call, or of an array of shared memory."""
    text = " ".join(statement.operands)
    if statement.word == ".reg" and (found := re.fullmatch(r"\.(\w+) +%?(\w+?)(?:<(\d+)>)?", text)):
        kind, name, n = found.groups()
        names = [f"{name}{k}" for k in range(int(n))] if n else [name]
        body.registers.update(names)
        type_ = c_type("pred" if kind == "pred" else f"u{kind[1:]}")
        return f"{type_} {', '.join(f'{own} = 0' for own in names)};"
    if statement.word == ".param" and (found := _CALL_PARAMETER.fullmatch(text)):
        bits, name, n = found.groups()
        body.sizes[name] = WIDTHS[bits] * int(n or 1)
        return f"alignas(16) uint8_t {name}[{body.sizes[name]}];"
    raise UnknownPtxError(statement.text)


def _translated(statement: Statement, body: _Body) -> str:
    """Return a statement in C++."""
    if statement.word in ("{", "}"):
        return statement.word
    if statement.word == ":":
        return f"{statement.operands[0]}:;"
    if statement.word.startswith("."):
        return _declare(statement, body)
    op = _Operation(statement, body)
    if statement.word in ("bra", "bra.uni"):
        text = f"goto {statement.operands[0]};"
    elif statement.word in ("call", "call.uni"):
        text = _call(op)
    elif statement.word == "ret":
        text = "return;"
    elif op.root in _TRANSLATORS:
        text = _TRANSLATORS[op.root](op)
        if op.modifiers:
            raise op.refuse()
    else:
        raise op.refuse()
    if not statement.guard:
        return f"{{ {text} }}"
    if statement.guard.lstrip("!") not in body.registers:
        raise op.refuse()
    return f"if ({statement.guard}) {{ {text} }}"


def _head(function: Function) -> str:
    """Return the declaration of a function, which takes the places of its result and its parameters."""
    own: list[Parameter] = [function.result] if function.result else []
    names = ", ".join(f"uint8_t *{parameter.name}" for parameter in (*own, *function.parameters))
    linkage = 'extern "C"' if function.is_kernel else "static"
    return f"{linkage} void {function.name}({names})"


def translate(module: Module) -> tuple[str, list[Kernel]]:
    """Return a module in C++, and its kernels, each a function that one thread runs.

    Raises:
        UnknownPtxError: An instruction is not known here.
    """
    lines = ['#include "device.h"']
    lines += [f"{_head(function)};" for function in module.functions if not function.is_kernel]
    bodies = {function.name: _Body(function, module.shared) for function in module.functions if function.body}
    for function in module.functions:
        if function.body:
            own = (_translated(statement, bodies[function.name]) for statement in function.body)
            lines += [f"{_head(function)} {{", *own, "}"]
    kernels = [_kernel(body, bodies) for body in bodies.values() if body.function.is_kernel]
    return "\n".join(lines) + "\n", kernels


def _kernel(body: _Body, bodies: dict[str, _Body]) -> Kernel:
    """Return what a launch must know, by what the kernel and the functions that it reaches name."""
    reached, new = {body.function.name}, {body.function.name}
    while new:
        new = {name for own in new for name in bodies[own].called} - reached
        reached |= new
    arrays = {name for own in reached for name in bodies[own].arrays}
    if len(arrays) > 1 or len(body.function.parameters) != 1:
        raise UnknownPtxError(
            f"{body.function.name}: {len(arrays)} arrays of shared memory, or other parameters than one"
        )
    return Kernel(body.function.name, body.function.parameters[0].size, sum(body.shared[name] for name in arrays))
