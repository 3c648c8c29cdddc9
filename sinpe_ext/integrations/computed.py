"""Modules that hold no table and compute their rows in every call: timesteps, x-transformers, positional-encodings.

The tensors of such a module do not show what a call computes. So its code is run on a copy of the module, and
`identify` examines the rows that it returns. A forward is run only if it, or a function that it calls, uses sine and
cosine. Sources, 2026: DiT, models.py; denoising-diffusion-pytorch, denoising_diffusion_pytorch.py; x-transformers 2.31,
x_transformers.py; positional-encodings 6.0, torch_encodings.py.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.catalogue import convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..functional import encode, table
from ..identification import identify
from ..reference.tiles import widest
from .dropin import (
    MOST,
    Candidate,
    DropIn,
    Left,
    changed,
    half_rotary,
    inner,
    isolated_copy,
    number,
    owner,
    parameters,
    settings,
)
from .measure import Differs, Probe, allowed, difference, quiet
from .plain_forms import Unclear, check_no_other_inputs, check_stateless, form_of, run, run_or_raise, same_values

STEPS = 128  # rows that are passed to identify
SPACINGS = (1.0, 1e-3)  # of timesteps: whole steps, or 0 .. 1 for a module that multiplies them by 1000
# Positions that 16 bits represent exactly, some so large that angles computed in 16 bits have errors of radians.
EXACT = (0.0, 1.0, 2.0, 3.0, 100.0, 996.0)
EXACT_PARTS = (0.0, 0.25, 85 / 256, 1.0)  # the same for a module that multiplies positions by 1000
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
HELD = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LARGEST = 2**26  # largest number of elements of a module that is copied for a trial
CLOSE = 2.0**-20  # relative error of float32 frequencies
LENGTHS = 2048  # length of the sequence for which a module's rows are compared
LONGEST, MOST_WIDTHS = 2**12, 4  # of the numbers of channels that are looked for among a module's attributes
GAIN = 16.0  # ratio of the largest gain for any change of the rows to that for a few random changes


class ComputedRows(DropIn):
    """Base of the drop-ins for modules without a table.

    Attributes:
        _sinpe_tables: names of the tensors that hold frequencies; not read, but maintained for checkpoints and other
            code.
        _sinpe_settings: the module's simple attributes at the time of the trial. If one has changed since, or a call is
            of a kind that was not tried, the module's own forward is called.
    """

    _sinpe_any_signature = True
    _sinpe_settings: tuple[tuple[str, Any], ...] = ()

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        return frequencies(self._sinpe_encoding, like)

    def _sinpe_changed(self) -> bool:
        return any(getattr(self, name, None) != value for name, value in self._sinpe_settings)

    def _sinpe_held(self) -> torch.dtype | None:
        return getattr(self, self._sinpe_tables[0]).dtype if self._sinpe_tables else None


class GivenPositions(ComputedRows):
    """Rows at given positions.

    Attributes:
        _sinpe_rank: number of dimensions of the positions; 2 means (batch, 1).
        _sinpe_dtypes: (dtype of the frequencies or None, of the positions, of the rows), as in the module.
    """

    _sinpe_rank: int = 1
    _sinpe_dtypes: tuple[tuple[torch.dtype | None, torch.dtype, torch.dtype], ...] = ()

    def _sinpe_encoded(self, positions: Any) -> Tensor | None:
        """The rows; None if the call is not of a kind that was tried."""
        if self._sinpe_changed() or type(positions) is not Tensor or positions.dim() != self._sinpe_rank:
            return None
        if self._sinpe_rank == 2 and positions.shape[1] != 1:
            return None
        held = self._sinpe_held()
        kinds = [out for at, input_dtype, out in self._sinpe_dtypes if at == held and input_dtype == positions.dtype]
        if not kinds:
            return None
        positions = positions.squeeze(1) if self._sinpe_rank == 2 else positions
        # The conversion of 16 bits is exact. float64 positions are rounded if the module's own rows are float32.
        narrow = positions.dtype.itemsize == 2 or (positions.dtype == torch.float64 and kinds[0] == torch.float32)
        return encode(positions.float() if narrow else positions, self._sinpe_encoding, dtype=kinds[0])


class PositionRows(GivenPositions):
    """The forward itself returns the rows: lucidrains' SinusoidalPosEmb and its copies."""

    _sinpe_argument: str = "x"

    def forward(self, *args: Any, **named: Any) -> Any:
        inputs = args if not named else (*args, *(named[key] for key in named if key == self._sinpe_argument))
        rows = self._sinpe_encoded(inputs[0]) if len(inputs) == 1 == len(args) + len(named) else None
        return super(DropIn, self).forward(*args, **named) if rows is None else rows  # type: ignore[misc]


class MethodRows(GivenPositions):
    """A method that the module's forward calls returns the rows: DiT's TimestepEmbedder and its copies.

    Attributes:
        _sinpe_rest: the method's arguments after the positions, as in the trial.
    """

    _sinpe_rest: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]] = ((), ())

    def _sinpe_method(self, *args: Any, **named: Any) -> Any:
        rest, more = self._sinpe_rest
        rows = self._sinpe_encoded(args[0]) if args and args[1:] == rest and tuple(named.items()) == more else None
        return getattr(super(DropIn, self), self._sinpe_replaces)(*args, **named) if rows is None else rows


class ScaledRows(ComputedRows):
    """scale * rows for the length of x or at given positions: x-transformers' ScaledSinusoidalEmbedding."""

    _sinpe_scale: str = "scale"

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: Any = 0
    ) -> Tensor:
        options = {} if type(offset) is int and offset == 0 else {"offset": offset}
        original: Any = super(DropIn, self)
        held = self._sinpe_held()
        plain = pos is None or (pos.dim() == 1 and pos.dtype in (torch.int64, torch.int32, torch.float32))
        if seq_start_pos is not None or type(offset) is not int or not plain or self._sinpe_changed() or held is None:
            rows: Tensor = original.forward(x, pos, seq_start_pos, **options)
            return rows
        if pos is None:
            rows = table(x.shape[1], self._sinpe_encoding, start=offset, dtype=held, device=x.device)
        else:
            wide = held if not pos.is_floating_point() else torch.promote_types(held, pos.dtype)
            rows = encode(pos, self._sinpe_encoding, dtype=wide)
        scaled: Tensor = rows * getattr(self, self._sinpe_scale)
        return scaled


class ShapedRows(ComputedRows):
    """Rows in the shape of x, (batch, ..., channels), with one to three axes: positional-encodings."""

    def forward(self, *args: Any, **named: Any) -> Any:
        x = args[0] if len(args) == 1 and not named else next(iter(named.values())) if len(named) == 1 else None
        encoding = self._sinpe_encoding
        axes = encoding.ndim if isinstance(encoding, GridEncoding) else 1
        if (
            not isinstance(x, Tensor)
            or x.dim() != axes + 2
            or x.shape[-1] != encoding.dim
            or x.dtype not in HELD
            or self._sinpe_changed()
        ):
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        lengths: Any = tuple(x.shape[1:-1])
        rows = table(lengths if axes > 1 else lengths[0], encoding, dtype=x.dtype, device=x.device)
        return rows.unsqueeze(0).repeat(x.shape[0], *([1] * (axes + 1)))


def frequencies(encoding: Encoding | GridEncoding, like: Tensor) -> Tensor:
    """The angular frequencies of an encoding, or of a grid's first axis, with the shape, dtype and device of `like`."""
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    values = torch.tensor(axis.frequencies_radians(), dtype=torch.float64)
    return values.to(device=like.device, dtype=like.dtype).reshape(like.shape)


def computed_of(module: nn.Module) -> list[Candidate] | Left | None:
    """Candidates for x-transformers' and positional-encodings' modules, by their signature, tensors and attributes."""
    names = parameters(module)
    tensors = [key for key, value in module._buffers.items() if value is not None and value.dim() == 1]
    if list(module.children()) or len(tensors) != 1 or not names:
        return None
    learned = [key for key, value in module._parameters.items() if value is not None]
    if names[:2] == ("x", "pos") and set(names[2:]) <= {"seq_start_pos", "offset"}:
        if len(learned) == 1 and module._parameters[learned[0]].numel() == 1:  # type: ignore[union-attr]
            return _scaled(module, tensors[0], learned[0])
        return None
    if len(names) == 1 and not learned and number(getattr(module, "channels", None)):
        return _shaped(module, tensors[0])
    return None


def _scaled(module: Any, key: str, scale: str) -> list[Candidate] | Left | None:
    """Candidates for x-transformers' module; `key` and `scale` are its buffer and its parameter."""
    held = module._buffers[key]
    if held.is_meta or not calls_sine(owner(module).forward, type(module)):
        return None
    dim, device = 2 * held.numel(), held.device
    with quiet(device):
        tried = isolated_copy(module)
        tried._parameters[scale] = nn.Parameter(torch.ones_like(tried._parameters[scale]))
        rows, why = run(tried, torch.zeros(1, STEPS, dim, device=device))
    encoding = _known(rows, (STEPS, dim))
    if encoding is None:
        return Left(f"its rows are no convention that identify knows{f': {why}' if why else ''}")
    if not _holds(encoding, held):
        return Left(f"its rows are recognized, but its buffer `{key}` holds other frequencies", encoding)
    with quiet(device):
        try:
            _check_inputs(tried, torch.zeros(1, 3, dim, device=device), (key, scale))
        except Unclear as problem:
            return Left(f"its rows are recognized, but {problem}", encoding)
    slack = max(1.0, abs(float(module._parameters[scale].detach())))
    lengths = (1, 7, 2048)
    probes = [Probe((torch.zeros(2, n, dim, device=device),), {}, float(n), slack) for n in lengths]
    positions = torch.tensor([5, 0, 999, 31], device=device)
    probes += [Probe((probes[0].args[0],), {"pos": pos}, 1000.0, slack) for pos in (positions, positions + 0.25)]
    if "offset" in parameters(module):
        probes += [Probe((probes[1].args[0],), {"offset": 9}, 16.0, slack)]
    options = {"_sinpe_scale": scale, "_sinpe_settings": _numbers(module)}
    return [Candidate(ScaledRows, encoding, (key,), probes, options, f"{scale} * rows for the length of x")]


def _shaped(module: Any, key: str) -> list[Candidate] | Left | None:
    """Candidates for the modules of positional-encodings; `key` is the buffer of frequencies."""
    held = module._buffers[key]
    if held.is_meta or not calls_sine(owner(module).forward, type(module)):
        return None
    device, wide = held.device, int(module.channels)
    for axes, lengths in ((1, (STEPS,)), (2, (9, 14)), (3, (7, 8, 9))):
        dim = int(getattr(module, "org_channels", axes * wide))
        tried, x = _without_cache(module), torch.zeros(1, *lengths, dim, device=device)
        with quiet(device):
            rows, _ = run(tried, x)
        if rows is None or rows.shape != (1, *lengths, dim):
            continue
        encodings: list[Any] = [convention(f"multidim{axes}d", dim)]
        if not _holds(encodings[0], held):  # another base
            shape = lengths if axes > 1 else None
            matches = identify(rows[0], shape=shape)
            encodings = [match.encoding for match in matches if _holds(match.encoding, held)]
        if not encodings:
            return Left("its rows are no convention that identify knows")
        with quiet(device):
            try:
                _check_inputs(tried, x, (key, None))
            except Unclear as problem:
                return Left(f"its rows are recognized, but {problem}", encodings[0])
        generator = torch.Generator().manual_seed(0)
        shapes = [(3, *lengths, dim), (1, *([1] * axes), dim), (2, *(n + 5 for n in lengths), dim)]
        probes = []
        for dtype in HELD:
            for shape in shapes:
                x = torch.randn(shape, generator=generator).to(device=device, dtype=dtype)
                probes.append(Probe((x,), {}, float(max(shape)), 1.0, dtype == held.dtype))
        options = {"_sinpe_settings": _numbers(module)}
        form = "rows for the length of x" if axes == 1 else f"rows for the {axes} axes of x"
        return [Candidate(ShapedRows, encoding, (key,), probes, options, form) for encoding in encodings]
    return None


def _check_inputs(tried: Any, x: Tensor, known: tuple[str | None, ...]) -> None:
    """Raises Unclear if the rows depend on values that a drop-in would not follow, or differ in training mode."""
    check_no_other_inputs(tried, x, known)
    training = isolated_copy(tried)
    training.__dict__["training"] = True
    if not same_values(run(training, x)[0], run_or_raise(tried, x)):
        raise Unclear("it gives something else in training")


def _without_cache(module: nn.Module) -> Any:
    """A copy without results cached by earlier calls."""
    tried = isolated_copy(module)
    for held in (tried._buffers, tried.__dict__):
        for key, value in held.items():
            if isinstance(value, Tensor) and value.dim() > 2:
                held[key] = None
    return tried


def called_of(module: nn.Module) -> list[Candidate] | Left | None:
    """Candidates for a module that returns the rows of timesteps, or has a method that does; found by running it."""
    kind: Any = type(module)
    if kind.__module__.partition(".")[0] == "torch" or "forward" in vars(module):
        return None
    required = _required(owner(module).forward)
    if required is None:
        return None
    tensors = [*module._parameters.values(), *module._buffers.values()]
    if any(value is not None and value.is_meta for value in tensors):
        return None
    inner = list(module.children())
    leaf = all(type(child) is nn.Dropout for child in inner) and not list(module.parameters())
    if leaf and required == 1 and calls_sine(owner(module).forward, kind):
        return _guarded(module, lambda: (None if inner else _timesteps(module)) or _length_candidates(module))
    for name, function in _methods(kind):
        # Only one level of calls is followed: through a library's base classes it would be the whole library.
        if _takes_positions(kind, name) and calls_sine(function, kind, depth=1):
            candidates = _guarded(module, lambda name=name: _method_candidates(module, name, required))  # type: ignore[misc]
            if candidates is not None:
                return candidates
    return None


def _guarded(module: nn.Module, trial: Callable[[], list[Candidate] | Left | None]) -> list[Candidate] | Left | None:
    """The result of a trial; an Unclear with an encoding becomes the reason why the module is left alone."""
    with quiet(_device_of(module)):
        try:
            return trial()
        except Unclear as problem:
            return Left(str(problem.args[0]), problem.args[1]) if len(problem.args) > 1 else None


def _device_of(module: nn.Module) -> torch.device:
    """The device of a module's first tensor, else the CPU."""
    return next((value.device for value in (*module.parameters(), *module.buffers())), torch.device("cpu"))


def _takes_positions(kind: type, name: str) -> bool:
    """Whether a method, static or not, takes an argument besides self."""
    held = inspect.getattr_static(kind, name)
    if isinstance(held, staticmethod):
        return len(inspect.signature(held.__func__).parameters) > 0
    return isinstance(held, types.FunctionType) and len(inspect.signature(held).parameters) > 1


def _required(function: Any) -> int | None:
    """The number of arguments after self without a default; None if it cannot be determined."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(
        each.kind not in plain and each.default is each.empty and each.kind != each.VAR_KEYWORD for each in parameters
    ):
        return None
    return sum(each.kind in plain and each.default is each.empty for each in parameters)


def _timesteps(module: Any) -> list[Candidate] | Left | None:
    """Candidates for a module without parameters whose forward returns rows at the given positions."""
    device, tried = _device_of(module), isolated_copy(module)
    steps = torch.arange(float(STEPS), device=device)
    rank, rows = 1, run(tried, steps)[0]
    if rows is None or rows.dim() != 2 or len(rows) != STEPS:
        rank, rows = 2, run(tried, steps[:, None])[0]
    if rows is None or rows.dim() != 2 or len(rows) != STEPS:
        return None
    encodings: list[Encoding] = []
    for spacing in SPACINGS:  # a large spacing of angles is less informative, so the last one found comes first
        if encodings and encodings[0].position_scale == 1.0:
            break
        spaced = steps if spacing == 1.0 else steps.to(widest(device)) * spacing  # in float32 these would be rounded
        spaced_rows, _ = run(tried, _shape(spaced, rank))
        encoding = _known(None if spaced_rows is None else spaced_rows.float(), tuple(rows.shape))
        if encoding is not None:
            encodings.insert(0, encoding.replace(position_scale=float(encoding.position_scale) / spacing))
    if not encodings:
        return None
    encoding, reason = encodings[0], "its rows of timesteps are recognized, but "
    try:
        tables = tuple(key for key, value in _tensors(module) if _holds(encoding, value))
        check_stateless(tried, _shape(steps, rank))
        _check_inputs(tried, _shape(steps, rank), tables)
    except Unclear as problem:
        raise Unclear(reason + str(problem), encoding) from None
    candidates = []
    held_now = getattr(module, tables[0]).dtype if tables else None
    for encoding in encodings:
        dtypes = _dtypes(lambda t, held: run_or_raise(_cast(tried, held), _shape(t, rank)), encoding, tables, device)
        options = {
            "_sinpe_rank": rank,
            "_sinpe_dtypes": dtypes,
            "_sinpe_argument": parameters(module)[0],
            "_sinpe_settings": settings(module),
        }
        kinds = {input_dtype for held, input_dtype, _ in dtypes if held == held_now}
        probes = [
            Probe((_shape(t, rank),), {}, far, 1.0, t.dtype == torch.float32)
            for t, far in _positions(encoding, device, kinds)
        ]
        candidates.append(Candidate(PositionRows, encoding, tables, probes, options, "rows of timesteps", True))
    return candidates


def _length_candidates(module: Any) -> list[Candidate] | Left | None:
    """Candidates for a module without parameters whose forward computes a table for the length of x, and adds or
    returns it."""
    if len(parameters(module)) != 1:
        return None
    device, tried = _device_of(module), isolated_copy(module)
    widths = {value: key for key, value in vars(module).items() if type(value) is int and 2 <= value <= LONGEST}
    for width in list(widths)[:MOST_WIDTHS]:
        for shape in ((1, LENGTHS, width), (LENGTHS, 1, width)):
            rows, _ = run(tried, torch.zeros(shape, device=device))
            if rows is None or not rows.is_floating_point() or rows.numel() != LENGTHS * width:
                continue
            rows = rows.reshape(LENGTHS, width)
            encoding = _known(rows[:STEPS], (STEPS, width))
            if encoding is not None:
                recognized = f"the rows that it computes are recognized ({encoding!r})"
                return form_of(module, None, rows, False, encoding, None, recognized)
    return None


def _method_candidates(module: Any, name: str, required: int) -> list[Candidate] | Left | None:
    """Candidates for a module whose forward calls a method of its own for the rows, whatever it does with them."""
    if required != 1 or sum(value.numel() for value in module.parameters()) > LARGEST:
        return _static_method(module, name)
    device, tried = _device_of(module), isolated_copy(module)
    seen: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
    method = getattr(tried, name)

    def recorded(*args: Any, **named: Any) -> Any:
        out = method(*args, **named)
        seen.append((args, named, out))
        return out

    tried.__dict__[name] = recorded
    steps = torch.arange(float(STEPS), device=device)
    before, problem = _called(tried, steps)
    if not seen:
        return _static_method(module, name)
    args, named, out = seen[0]
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != STEPS or not args or type(args[0]) is not Tensor:
        return None
    rest = args[1:], tuple(named.items())
    if not all(_simple(value) for value in (*rest[0], *named.values())) or args[0].dim() != 1:
        return None

    def rows_of(t: Tensor, held: Any = None) -> Tensor:
        rows: Tensor = method(t, *args[1:], **named)
        return rows

    encoding = _known(rows_of(steps), tuple(out.shape))
    if encoding is None:
        return None
    reason = f"its method `{name}` is recognized ({encoding!r}), but "
    if before is None:
        raise Unclear(f"{reason}its forward could not be run on timesteps: {problem}", encoding)
    if len(seen) > 1:
        raise Unclear(f"{reason}its forward calls it {len(seen)} times", encoding)
    _reads_no_tensor(module, name, lambda method: method(steps, *args[1:], **named), reason, encoding)
    dtypes = _dtypes(rows_of, encoding, (), device)
    kinds = {input_dtype for _, input_dtype, _ in dtypes}
    if torch.float32 not in kinds:
        raise Unclear(f"{reason}other rows are given for timesteps up to {EXACT[-1]:g}", encoding)
    most = torch.arange(1000.0, device=device)
    try:
        apart = difference(rows_of(most), encode(most, encoding))
        limit = allowed(encoding, float(most[-1]), torch.float32)
    except Differs as differs:
        raise Unclear(reason + str(differs), encoding) from None
    if not apart <= limit:
        raise Unclear(f"{reason}its rows differ by {apart:.2g}, where float32 angles explain {limit:.2g}", encoding)
    slack = max(1.0, _gain(module, name, steps, device) * GAIN)
    probes = [Probe((t,), {}, far, slack) for t, far in _positions(encoding, device, kinds & {torch.float32})]
    options = {
        "_sinpe_replaces": name,
        "_sinpe_rest": rest,
        "_sinpe_dtypes": dtypes,
        "_sinpe_settings": settings(module),
    }
    return [Candidate(MethodRows, encoding, (), probes, options, f"rows of timesteps in `{name}`")]


def _reads_no_tensor(module: Any, name: str, rows_of: Callable[[Any], Tensor], reason: str, encoding: Encoding) -> None:
    """Raises Unclear if the rows that a method returns depend on a tensor of the module or on a number inside an
    object, because a replacement would not follow changes of these."""
    if isinstance(inspect.getattr_static(type(module), name), staticmethod):
        return
    before = rows_of(getattr(isolated_copy(module), name))
    other = isolated_copy(module)
    for value in (*other.parameters(), *other.buffers()):
        if value.is_floating_point():
            value.data.mul_(2).add_(1)
    changes = [(other, "its tensors")]
    for path in list(inner(module))[:MOST]:
        other = isolated_copy(module)
        changed(other, path)
        changes.append((other, f"`{'.'.join(map(str, path))}`"))
    for other, what in changes:
        try:
            after = rows_of(getattr(other, name))
        except Exception:  # other values may be invalid
            continue
        if not same_values(after, before):
            raise Unclear(f"{reason}its rows depend on {what}, which a drop-in would not follow", encoding)


def _called(tried: Any, t: Tensor) -> tuple[Any, str]:
    """(output of forward, ""), or (None, reason)."""
    try:
        return tried.forward(t), ""
    except Exception as problem:
        return None, f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"


def _static_method(module: Any, name: str) -> Left | None:
    """Reports a static method that returns rows, in a module that cannot be run as a whole and is left alone."""
    static = inspect.getattr_static(type(module), name)
    if not isinstance(static, staticmethod) or len(inspect.signature(static.__func__).parameters) < 2:
        return None
    try:
        rows = getattr(type(module), name)(torch.arange(float(STEPS)), 64)
    except Exception:  # it takes other arguments, so nothing is known about it
        return None
    encoding = _known(rows, (STEPS, 64)) if isinstance(rows, Tensor) else None
    if encoding is None:
        return None
    asked = ", ".join(parameters(module)) or "nothing"
    return Left(f"its method `{name}` is recognized, but its forward takes {asked}, not timesteps alone", encoding)


def _gain(module: Any, name: str, steps: Tensor, device: torch.device) -> float:
    """The largest ratio of a change of the output to a change of the rows, for a few random changes."""
    generator, largest, size = torch.Generator().manual_seed(3), 0.0, 2.0**-7
    outs: list[Tensor] = []
    for change in range(3):
        tried = isolated_copy(module)
        method = getattr(tried, name)

        def changed(*args: Any, change: int = change, method: Any = method, **named: Any) -> Any:
            rows = method(*args, **named)
            signs = torch.randint(0, 2, rows.shape, generator=generator).to(rows) * 2 - 1
            return rows + signs * (size * change)

        tried.__dict__[name] = changed
        out = tried.forward(steps)
        if not isinstance(out, Tensor):
            raise Unclear("its output is no tensor")
        outs.append(out.cpu().double())
        largest = max(largest, float((outs[-1] - outs[0]).abs().max()) / size / max(change, 1))
    return largest


def _dtypes(
    rows_of: Callable[[Tensor, Any], Tensor], encoding: Encoding, tables: tuple[str, ...], device: torch.device
) -> tuple[tuple[torch.dtype | None, torch.dtype, torch.dtype], ...]:
    """(dtype of the frequencies or None, of the positions, of the rows) for the dtypes for which the rows agree.

    If the module's frequencies have 16 bits, its own rows are inaccurate and are not compared: exact ones replace them.
    """
    scale = max(1.0, abs(float(encoding.position_scale)))
    exact = torch.tensor(EXACT, device=device) if scale == 1.0 else torch.tensor(EXACT_PARTS, device=device)
    dtypes = []
    for held in HELD if tables else (None,):
        for input_dtype in DTYPES:
            try:
                if scale != 1.0 and not input_dtype.is_floating_point:
                    t = torch.tensor((0, 1, 2), device=device).to(input_dtype)
                else:
                    t = exact.to(input_dtype)
                rows = rows_of(t, held)
            except Exception:  # a dtype that the module or the device lacks: the module's own forward will be called
                continue
            if rows.shape != (len(t), encoding.dim) or rows.dtype not in HELD:
                continue
            ours = encode(t.float() if t.is_floating_point() else t, encoding, dtype=rows.dtype)
            limit = allowed(encoding, float(t.max()), rows.dtype)
            if (held is not None and held.itemsize == 2) or difference(rows, ours) <= limit:
                dtypes.append((held, input_dtype, rows.dtype))
    return tuple(dtypes)


def _positions(encoding: Encoding, device: torch.device, kinds: set[torch.dtype]) -> Iterator[tuple[Tensor, float]]:
    """Yields positions to compare, and the largest: 1000 steps, or 0 to 1 if there is a scale."""
    most = max(1.0, abs(float(encoding.position_scale)))
    fractions = torch.tensor([0.0, 0.5, 1.0, 1.75, 3.0], device=device) / most
    yield torch.arange(1001.0, device=device) / most, 1000.0 / most
    yield fractions, 3.0 / most
    yield fractions[:1], 1.0
    for dtype in DTYPES:
        if dtype in kinds and dtype != torch.float32:
            if dtype.is_floating_point:
                yield fractions.to(dtype), 4.0 / most
            elif most == 1.0:
                yield torch.arange(0, 1001, 111, device=device).to(dtype), 1000.0


def _known(rows: Tensor | None, shape: tuple[int, ...]) -> Encoding | None:
    """The encoding that gives these rows at positions 0, 1, 2, ..., or None."""
    if rows is None or not rows.is_floating_point() or rows.numel() != shape[0] * shape[1] or shape[1] < 2:
        return None
    matches = identify(rows.detach().reshape(shape))
    for match in matches[:1]:
        whole = not (match.zero_rows or match.extra_tokens or match.zero_columns or match.transposed)
        if whole and isinstance(match.encoding, Encoding) and match.encoding.start == 0:
            return None if half_rotary(match) else match.encoding
    return None


def _holds(encoding: Any, held: Tensor) -> bool:
    """Whether a tensor holds the angular frequencies of an encoding."""
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    values = axis.frequencies_radians()
    if len(values) != held.numel() or not held.is_floating_point() or held.dtype.itemsize < 4:
        return False
    expected = torch.tensor(values, dtype=torch.float64)
    return bool(((held.detach().cpu().double().reshape(-1) - expected).abs() <= CLOSE * expected.abs()).all())


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers and tensor attributes of a module, by name."""
    named = {**module._buffers, **{key: value for key, value in vars(module).items() if isinstance(value, Tensor)}}
    return [(key, value) for key, value in named.items() if type(value) is Tensor and value.dim() > 0]


def _cast(tried: Any, held: torch.dtype | None) -> Any:
    """A copy of a module converted to a dtype; the module itself for None."""
    return tried if held is None else isolated_copy(tried).to(held)


def _shape(t: Tensor, rank: int) -> Tensor:
    """Positions (n,) as (n, 1) if rank is 2."""
    return t[:, None] if rank == 2 else t


def _simple(value: Any) -> bool:
    """Whether a value is a setting that can be compared with ==."""
    return isinstance(value, (bool, int, float, str, type(None), torch.dtype))


def _numbers(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """The numbers among the settings of a module."""
    return tuple((key, value) for key, value in settings(module) if number(value))


def _methods(kind: type) -> list[tuple[str, Any]]:
    """The functions of a class and its bases below nn.Module, except forward."""
    methods: dict[str, Any] = {}
    for made in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, value in vars(made).items():
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(plain, types.FunctionType) and name != "forward" and not name.startswith("__"):
                methods.setdefault(name, plain)
    return list(methods.items())


def calls_sine(function: Any, kind: type, depth: int = 3) -> bool:
    """Whether a function, or the functions and methods that it names, uses both sine and cosine."""
    return {"sin", "cos"} <= {name.rstrip("_") for name in _names(function, kind, depth, set())}


def _names(function: Any, kind: type, depth: int, seen: set[int]) -> Iterator[str]:
    """Yields the names that a function uses, and those of the functions that it names, to a depth."""
    plain = inspect.unwrap(function) if callable(function) else function
    if not isinstance(plain, types.FunctionType) or id(plain) in seen:
        return
    seen.add(id(plain))
    codes, classes = [plain.__code__], kind.__mro__[: kind.__mro__.index(nn.Module)]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            yield name
            if not depth:
                continue
            for member in (plain.__globals__.get(name), *(vars(made).get(name) for made in classes)):
                below = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
                if isinstance(below, types.FunctionType) and not str(below.__module__).startswith("torch"):
                    yield from _names(below, kind, depth - 1, seen)
