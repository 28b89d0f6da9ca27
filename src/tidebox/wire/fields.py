"""How the fields of payloads are declared, checked and written.

A payload is a CBOR map. Each field has a kind (what values it takes) and a rule for its absence:
``field(kind)`` must be there; ``field(kind, default=x)`` may be missing and is always written (None as null);
``field(kind, default=x, omit=True)`` is left out when it has its default. Unknown keys are ignored.
"""

from __future__ import annotations

from tidebox.wire.errors import InvalidPayload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform

else:

    def dataclass_transform(**_options):
        """Tells type checkers that subclasses get an ``__init__`` from their fields."""
        return lambda decorated: decorated


class FieldKind:
    """The type of a field: its values and their form on the wire; this one takes anything."""

    __slots__ = ()

    def decode(self, value: Any, where: str) -> Any:
        """The checked Python value of a decoded CBOR item."""
        return value

    def encode(self, value: Any) -> Any:
        """The CBOR item of a Python value."""
        return value


class Exactly(FieldKind):
    """Values of exactly one Python type."""

    __slots__ = ("type", "name")

    def __init__(self, type_: type, name: str) -> None:
        self.type = type_
        self.name = name

    def decode(self, value: Any, where: str) -> Any:
        if type(value) is not self.type:
            raise InvalidPayload(f"{where}: expected {self.name}")
        return value


class Integer(FieldKind):
    """Integers between two bounds, both included."""

    __slots__ = ("low", "high")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def decode(self, value: Any, where: str) -> Any:
        if type(value) is not int:
            raise InvalidPayload(f"{where}: expected an integer")
        if not self.low <= value <= self.high:
            raise InvalidPayload(f"{where}: {value} is out of range")
        return value


class ByteString(FieldKind):
    """Byte strings; decoded from a memoryview they stay a view of the frame."""

    __slots__ = ()

    def decode(self, value: Any, where: str) -> Any:
        if not isinstance(value, (bytes, memoryview)):
            raise InvalidPayload(f"{where}: expected bytes")
        return value


class ListOf(FieldKind):
    """Arrays whose members are all of one kind."""

    __slots__ = ("member", "length")

    def __init__(self, member: FieldKind, length: int | None = None) -> None:
        self.member = member
        self.length = length

    def decode(self, value: Any, where: str) -> Any:
        if type(value) is not list:
            raise InvalidPayload(f"{where}: expected an array")
        if self.length is not None and len(value) != self.length:
            raise InvalidPayload(f"{where}: expected {self.length} members")
        return [self.member.decode(member, where) for member in value]

    def encode(self, value: Any) -> Any:
        return [self.member.encode(member) for member in value]


class Nested(FieldKind):
    """A map with declared fields of its own."""

    __slots__ = ("struct",)

    def __init__(self, struct: type[Struct]) -> None:
        self.struct = struct

    def decode(self, value: Any, where: str) -> Any:
        return self.struct.from_item(value, where)

    def encode(self, value: Any) -> Any:
        return value.to_item()


class OneOf(FieldKind):
    """An externally tagged choice: a map with one key, the variant's class name or ``TAG``."""

    __slots__ = ("variants",)

    def __init__(self, *variants: type[Struct]) -> None:
        self.variants = {variant.TAG: variant for variant in variants}

    def decode(self, value: Any, where: str) -> Any:
        if type(value) is not dict or len(value) != 1:
            raise InvalidPayload(f"{where}: expected a map with one variant")
        ((tag, item),) = value.items()
        variant = self.variants.get(tag)
        if variant is None:
            raise InvalidPayload(f"{where}: unknown variant")
        return variant.from_item(item, where)

    def encode(self, value: Any) -> Any:
        return {value.TAG: value.to_item()}


ANY = FieldKind()
BOOL = Exactly(bool, "a boolean")
TEXT = Exactly(str, "text")
MAP = Exactly(dict, "a map")
BYTES = ByteString()
U8 = Integer(0, 2**8 - 1)
U16 = Integer(0, 2**16 - 1)
U32 = Integer(0, 2**32 - 1)
U64 = Integer(0, 2**64 - 1)
I32 = Integer(-(2**31), 2**31 - 1)
I64 = Integer(-(2**63), 2**63 - 1)
TEXTS = ListOf(TEXT)

_REQUIRED = object()


class Field:
    """One declared field."""

    __slots__ = ("name", "kind", "default", "omit")

    def __init__(self, kind: FieldKind, default: Any, omit: bool) -> None:
        self.name = ""
        self.kind = kind
        self.default = default
        self.omit = omit


def field(kind: FieldKind, *, default: Any = _REQUIRED, omit: bool = False) -> Any:
    """Declare a field of a Struct."""
    return Field(kind, default, omit)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Struct:
    """A map with declared fields; subclasses only list them."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    TAG: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = [(name, value) for name, value in cls.__dict__.items() if isinstance(value, Field)]
        for name, value in declared:
            value.name = name
            delattr(cls, name)
        cls.FIELDS = cls.FIELDS + tuple(value for _, value in declared)
        if "TAG" not in cls.__dict__:
            cls.TAG = cls.__name__

    def __init__(self, **named: Any) -> None:
        values = self.__dict__
        for declared in self.FIELDS:
            value = named.pop(declared.name, declared.default)
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {declared.name}")
            values[declared.name] = value
        if named:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(named)}")

    @classmethod
    def from_item(cls, item: Any, where: str) -> Self:
        """Check a decoded CBOR item and make the struct of it."""
        if type(item) is not dict:
            raise InvalidPayload(f"{where}: expected a map")
        made = cls.__new__(cls)
        values = made.__dict__
        for declared in cls.FIELDS:
            value = item.get(declared.name)
            if value is not None:
                value = declared.kind.decode(value, declared.name)
            elif declared.default is not _REQUIRED:
                value = declared.default
            elif declared.name in item:
                raise InvalidPayload(f"{where}: null in field `{declared.name}`")
            else:
                raise InvalidPayload(f"{where}: missing field `{declared.name}`")
            values[declared.name] = value
        return made

    def to_item(self) -> Any:
        """The CBOR item, keys in declaration order."""
        item = {}
        values = self.__dict__
        for declared in self.FIELDS:
            value = values[declared.name]
            if declared.omit and value == declared.default:
                continue
            item[declared.name] = None if value is None else declared.kind.encode(value)
        return item

    def __eq__(self, other: object) -> bool:
        # By what is written, so that a list and a tuple of the same members are the same.
        return isinstance(other, Struct) and type(other) is type(self) and bool(other.to_item() == self.to_item())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # Texts and bytes may hold code, secrets or files; a repr may end up in a log.
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({shown})"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, Struct)):
        return repr(value)
    return f"<{type(value).__name__} of {len(value)}>" if hasattr(value, "__len__") else f"<{type(value).__name__}>"


class Newtype(Struct):
    """A variant that is written as its only field, without a map around it."""

    @classmethod
    def from_item(cls, item: Any, where: str) -> Self:
        made = cls.__new__(cls)
        declared = cls.FIELDS[0]
        made.__dict__[declared.name] = declared.kind.decode(item, where)
        return made

    def to_item(self) -> Any:
        declared = self.FIELDS[0]
        return declared.kind.encode(self.__dict__[declared.name])


# Who sends a message.
TO_GUEST = 1
TO_HOST = 2


class Message(Struct):
    """A payload with a wire name. Flags are a function of the type, never of the instance."""

    WIRE: ClassVar[str]
    GENERATION: ClassVar[int]
    DIRECTION: ClassVar[int]
    FLAGS: ClassVar[int] = 0


class DataMessage(Message):
    """A message whose only field is a (possibly large) byte string."""

    data: bytes | memoryview

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data

    @classmethod
    def from_item(cls, item: Any, where: str) -> Self:
        if type(item) is not dict or "data" not in item:
            raise InvalidPayload(f"{where}: missing field `data`")
        return cls(BYTES.decode(item["data"], "data"))

    def to_item(self) -> Any:
        return {"data": self.data}
