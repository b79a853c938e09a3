from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("part", "more")
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    more: bool
    def __init__(self, part: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("type", "shape", "content")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FLOAT64: _ClassVar[Array.Type]
        FLOAT32: _ClassVar[Array.Type]
        INT64: _ClassVar[Array.Type]
        UINT8: _ClassVar[Array.Type]
        UINT32: _ClassVar[Array.Type]
    FLOAT64: Array.Type
    FLOAT32: Array.Type
    INT64: Array.Type
    UINT8: Array.Type
    UINT32: Array.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    type: Array.Type
    shape: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    def __init__(self, type: _Optional[_Union[Array.Type, str]] = ..., shape: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ...) -> None: ...

class ToClient(_message.Message):
    __slots__ = ("round", "sequence", "welcome", "begin", "embed", "gradients", "predict", "save", "restore", "deliver", "end", "introduce", "start_alignment", "own_points", "blind", "blinded", "begin_opening", "open", "collect", "finish", "agree", "check_aligned")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    INTRODUCE_FIELD_NUMBER: _ClassVar[int]
    START_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    OWN_POINTS_FIELD_NUMBER: _ClassVar[int]
    BLIND_FIELD_NUMBER: _ClassVar[int]
    BLINDED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OPENING_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    AGREE_FIELD_NUMBER: _ClassVar[int]
    CHECK_ALIGNED_FIELD_NUMBER: _ClassVar[int]
    round: int
    sequence: int
    welcome: Welcome
    begin: Begin
    embed: Embed
    gradients: Gradients
    predict: Predict
    save: Save
    restore: Restore
    deliver: Deliver
    end: End
    introduce: Introduce
    start_alignment: StartAlignment
    own_points: OwnPoints
    blind: Blind
    blinded: Blinded
    begin_opening: BeginOpening
    open: Open
    collect: Collect
    finish: Finish
    agree: Agree
    check_aligned: CheckAligned
    def __init__(self, round: _Optional[int] = ..., sequence: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., embed: _Optional[_Union[Embed, _Mapping]] = ..., gradients: _Optional[_Union[Gradients, _Mapping]] = ..., predict: _Optional[_Union[Predict, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., deliver: _Optional[_Union[Deliver, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., introduce: _Optional[_Union[Introduce, _Mapping]] = ..., start_alignment: _Optional[_Union[StartAlignment, _Mapping]] = ..., own_points: _Optional[_Union[OwnPoints, _Mapping]] = ..., blind: _Optional[_Union[Blind, _Mapping]] = ..., blinded: _Optional[_Union[Blinded, _Mapping]] = ..., begin_opening: _Optional[_Union[BeginOpening, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., collect: _Optional[_Union[Collect, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., agree: _Optional[_Union[Agree, _Mapping]] = ..., check_aligned: _Optional[_Union[CheckAligned, _Mapping]] = ...) -> None: ...

class FromClient(_message.Message):
    __slots__ = ("round", "sequence", "hello", "embeddings", "prediction", "done", "refusal", "introduction", "points", "positions", "checksum")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    round: int
    sequence: int
    hello: Hello
    embeddings: Embeddings
    prediction: Prediction
    done: Done
    refusal: Refusal
    introduction: Introduction
    points: Points
    positions: Positions
    checksum: Checksum
    def __init__(self, round: _Optional[int] = ..., sequence: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., embeddings: _Optional[_Union[Embeddings, _Mapping]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., introduction: _Optional[_Union[Introduction, _Mapping]] = ..., points: _Optional[_Union[Points, _Mapping]] = ..., positions: _Optional[_Union[Positions, _Mapping]] = ..., checksum: _Optional[_Union[Checksum, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "name", "session", "time", "purpose", "start", "alignment", "training")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    name: str
    session: str
    time: float
    purpose: str
    start: str
    alignment: str
    training: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., session: _Optional[str] = ..., time: _Optional[float] = ..., purpose: _Optional[str] = ..., start: _Optional[str] = ..., alignment: _Optional[str] = ..., training: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "version", "name", "time", "about", "training")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    name: str
    time: float
    about: str
    training: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., time: _Optional[float] = ..., about: _Optional[str] = ..., training: _Optional[str] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("reason", "is_finished")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    is_finished: bool
    def __init__(self, reason: _Optional[str] = ..., is_finished: _Optional[bool] = ...) -> None: ...

class Introduce(_message.Message):
    __slots__ = ("purpose",)
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    purpose: str
    def __init__(self, purpose: _Optional[str] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class StartAlignment(_message.Message):
    __slots__ = ("value", "parties", "sizes", "part_size")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PART_SIZE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    parties: _containers.RepeatedScalarFieldContainer[str]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    part_size: int
    def __init__(self, value: _Optional[bytes] = ..., parties: _Optional[_Iterable[str]] = ..., sizes: _Optional[_Iterable[int]] = ..., part_size: _Optional[int] = ...) -> None: ...

class OwnPoints(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: int
    def __init__(self, part: _Optional[int] = ...) -> None: ...

class Blind(_message.Message):
    __slots__ = ("owner", "part", "points")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    part: int
    points: Array
    def __init__(self, owner: _Optional[str] = ..., part: _Optional[int] = ..., points: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Blinded(_message.Message):
    __slots__ = ("owner", "part")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    owner: str
    part: int
    def __init__(self, owner: _Optional[str] = ..., part: _Optional[int] = ...) -> None: ...

class Points(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: Array
    def __init__(self, points: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class BeginOpening(_message.Message):
    __slots__ = ("n_common",)
    N_COMMON_FIELD_NUMBER: _ClassVar[int]
    n_common: int
    def __init__(self, n_common: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("owner", "part", "positions")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    part: int
    positions: Array
    def __init__(self, owner: _Optional[str] = ..., part: _Optional[int] = ..., positions: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Positions(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: Array
    def __init__(self, positions: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Collect(_message.Message):
    __slots__ = ("part", "positions")
    PART_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    part: int
    positions: Array
    def __init__(self, part: _Optional[int] = ..., positions: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Checksum(_message.Message):
    __slots__ = ("checksum",)
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    checksum: str
    def __init__(self, checksum: _Optional[str] = ...) -> None: ...

class Agree(_message.Message):
    __slots__ = ("parties", "checksums")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    parties: _containers.RepeatedScalarFieldContainer[str]
    checksums: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parties: _Optional[_Iterable[str]] = ..., checksums: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckAligned(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("start", "samples", "is_test", "learning", "n_planned")
    START_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    IS_TEST_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    N_PLANNED_FIELD_NUMBER: _ClassVar[int]
    start: str
    samples: Array
    is_test: Array
    learning: Learning
    n_planned: int
    def __init__(self, start: _Optional[str] = ..., samples: _Optional[_Union[Array, _Mapping]] = ..., is_test: _Optional[_Union[Array, _Mapping]] = ..., learning: _Optional[_Union[Learning, _Mapping]] = ..., n_planned: _Optional[int] = ...) -> None: ...

class Learning(_message.Message):
    __slots__ = ("model", "hidden", "width", "seed", "rate", "decay", "optimizer", "momentum", "scale")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    model: str
    hidden: int
    width: int
    seed: int
    rate: float
    decay: str
    optimizer: str
    momentum: float
    scale: str
    def __init__(self, model: _Optional[str] = ..., hidden: _Optional[int] = ..., width: _Optional[int] = ..., seed: _Optional[int] = ..., rate: _Optional[float] = ..., decay: _Optional[str] = ..., optimizer: _Optional[str] = ..., momentum: _Optional[float] = ..., scale: _Optional[str] = ...) -> None: ...

class Embed(_message.Message):
    __slots__ = ("samples", "gradients")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    samples: Array
    gradients: Step
    def __init__(self, samples: _Optional[_Union[Array, _Mapping]] = ..., gradients: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("samples", "values", "round")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    samples: Array
    values: Array
    round: int
    def __init__(self, samples: _Optional[_Union[Array, _Mapping]] = ..., values: _Optional[_Union[Array, _Mapping]] = ..., round: _Optional[int] = ...) -> None: ...

class Embeddings(_message.Message):
    __slots__ = ("embeddings",)
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    embeddings: Array
    def __init__(self, embeddings: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("samples", "values")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    samples: Array
    values: Array
    def __init__(self, samples: _Optional[_Union[Array, _Mapping]] = ..., values: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Predict(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: Array
    def __init__(self, samples: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("embeddings",)
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    embeddings: Array
    def __init__(self, embeddings: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("keep",)
    KEEP_FIELD_NUMBER: _ClassVar[int]
    keep: int
    def __init__(self, keep: _Optional[int] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Deliver(_message.Message):
    __slots__ = ("name", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...
