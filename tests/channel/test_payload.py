"""A batch comes back as it was: leaves on the memory of their buffers, structure and identity as pickle keeps them."""

from __future__ import annotations

import dataclasses
import gc
import io
import mmap
import threading
import weakref
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aloader import options
from aloader.channel.payload import Packed, address_of, pack, unpack

LARGE = options.LEASE_BYTES
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]


def arrive(packed: Packed) -> list[Any]:
    """What the parent has of a batch's buffers: lease owners, made directly on a shared mapping."""
    size = max(1, sum(len(view) + 64 for view in packed.buffers))
    segment, owners, offset = mmap.mmap(-1, size), [], 0
    for view in packed.buffers:
        segment[offset : offset + len(view)] = view.tobytes()
        owners.append(np.frombuffer(segment, np.uint8, len(view), offset))
        offset += -(-len(view) // 64) * 64
    return owners


def carried(batch: Any) -> Any:
    packed = pack(batch)
    return unpack(packed.body, arrive(packed))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, for dtypes that torch cannot compare."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.requires_grad == other.requires_grad
        assert torch.equal(bits(one), bits(other))
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.flags.writeable == other.flags.writeable
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert repr(one) == repr(other)


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype).nbytes
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


class TestWhereLeavesLie:
    def test_large_ones_lie_on_their_owners_memory_and_small_ones_in_the_stream(self) -> None:
        batch = {"image": torch.rand(64, 3, 32, 32), "label": torch.arange(64), "path": [f"{i}.jpg" for i in range(64)]}
        packed = pack(batch)
        owners = arrive(packed)
        back = unpack(packed.body, owners)
        assert [len(view) for view in packed.buffers] == [batch["image"].nbytes]
        assert len(packed.body) < options.BODY_BYTES
        assert back["image"].data_ptr() == owners[0].ctypes.data
        assert_same(back, batch)

    def test_buffers_are_flat_in_order_and_not_copied(self) -> None:
        image, table = torch.rand(3, 100, 100), np.arange(20_000.0).reshape(100, 200)
        buffers = pack([image, table, torch.ones(3)]).buffers
        assert [address_of(view) for view in buffers] == [image.data_ptr(), table.ctypes.data]
        assert all(view.format == "B" and view.ndim == 1 and view.contiguous for view in buffers)

    @pytest.mark.parametrize(("nbytes", "outside"), [(LARGE - 1, 0), (LARGE, 1)])
    def test_the_border(self, nbytes: int, outside: int) -> None:
        assert len(pack(torch.zeros(nbytes, dtype=torch.uint8)).buffers) == outside
        assert len(pack(np.zeros(nbytes, dtype=np.uint8)).buffers) == outside

    def test_the_stream_may_be_a_view(self) -> None:
        packed = pack([torch.arange(3), "x"])
        assert_same(unpack(memoryview(packed.body), []), [torch.arange(3), "x"])

    @pytest.mark.parametrize("size", [16, LARGE])
    def test_a_leaf_has_its_own_storage_is_writable_and_is_saved_alone(self, size: int) -> None:
        first, second = carried([torch.ones(size), torch.zeros(2 * size)])
        first += 1
        assert first.untyped_storage().nbytes() == first.nbytes
        assert second.eq(0).all()
        file = io.BytesIO()
        torch.save(first, file)
        assert file.tell() < first.nbytes + 2000

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_an_owner_lives_as_long_as_anything_of_its_leaf(self, dtype: torch.dtype) -> None:
        packed = pack([torch.ones(300, 300, dtype=dtype)])
        owners, ended = arrive(packed), list[int]()
        lease = weakref.ref(owners[0], lambda _: ended.append(1))
        batch = unpack(packed.body, owners)
        part = batch[0].t()[1:].float() if dtype is torch.bfloat16 else batch[0].t()[1:].numpy()
        view = batch[0][3]
        assert view.untyped_storage()._aloader_lease is owners[0]
        owners.clear()
        batch.clear()
        gc.collect()
        assert lease() is not None
        del view, part
        gc.collect()
        assert ended == [1]

    def test_share_memory_does_not_end_a_lease_under_a_numpy_view(self) -> None:
        packed = pack(torch.full((LARGE,), 7.0))
        owners = arrive(packed)
        lease = weakref.ref(owners[0])
        tensor = unpack(packed.body, owners)
        owners.clear()
        numpy_view = tensor.numpy()
        tensor.share_memory_()
        gc.collect()
        assert lease() is not None
        assert numpy_view[5] == 7
        del tensor, numpy_view
        assert lease() is None

    def test_a_numpy_leaf_holds_its_owner(self) -> None:
        packed = pack(np.ones(LARGE))
        owners = arrive(packed)
        lease = weakref.ref(owners[0])
        array = unpack(packed.body, owners)
        owners.clear()
        part = array.reshape(2, -1)[1][3:]
        del array
        assert lease() is not None
        del part
        assert lease() is None


class TestTensors:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4), (300, 300)], ids=str)
    def test_every_dtype_and_shape(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        tensor = random(dtype, *shape)
        back = carried(tensor)
        assert_same(back, tensor)
        assert back.stride() == tensor.stride()
        assert not back._is_view()
        assert back.untyped_storage().nbytes() == tensor.nbytes

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
            lambda: torch.rand(8, 16, 32, 32).to(memory_format=torch.channels_last),
            lambda: torch.rand(3, 4).t(),
            lambda: torch.rand(300, 400).t(),
            lambda: torch.rand(400, 300, dtype=torch.float64).to(torch.bfloat16).t(),
            lambda: torch.rand(1, 4).expand(3, 4),
            lambda: torch.tensor(3.0).expand(1000, 1000),
            lambda: torch.rand(2, 3, 4).permute(2, 0, 1),
            lambda: torch.zeros(0, 3).t(),
        ],
    )
    def test_dense_and_expanded_layouts_keep_their_strides(self, make: Any) -> None:
        tensor = make()
        back = carried(tensor)
        assert_same(back, tensor)
        assert back.stride() == tensor.stride()
        assert not back._is_view()
        assert back.untyped_storage().nbytes() <= tensor.nbytes

    @pytest.mark.parametrize("cut", [np.s_[:, ::2], np.s_[::3], np.s_[1:, :5], np.s_[7]], ids=str)
    def test_what_lies_between_the_elements_of_a_view_stays_behind(self, cut: Any) -> None:
        tensor = torch.rand(1000, 100)[cut]
        packed = pack(tensor)
        assert len(packed.body) + sum(map(len, packed.buffers)) <= tensor.nbytes + 500
        assert_same(carried(tensor), tensor)

    def test_conjugate_and_negative_views(self) -> None:
        tensor = torch.randn(4, dtype=torch.complex64)
        batch = [tensor, tensor.conj(), tensor.conj().imag]
        assert batch[1].is_conj()
        assert batch[2].is_neg()
        assert_same(carried(batch), batch)
        assert not carried(batch)[1].is_conj()

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    def test_half_complex(self) -> None:
        tensor = torch.view_as_complex(torch.ones(3, 2, dtype=torch.float16))
        assert_same(carried(tensor), tensor)

    def test_requires_grad_and_attributes(self) -> None:
        tensor, parameter = (
            torch.rand(3, 4).t().requires_grad_(),
            torch.nn.Parameter(torch.ones(3), requires_grad=False),
        )
        tensor.name_of_file = "a"  # type: ignore[attr-defined]
        back = carried([tensor, parameter])
        assert_same(back, [tensor, parameter])
        assert back[0].is_leaf
        assert back[0].name_of_file == "a"

    def test_half_a_graph_is_refused_with_the_remedy(self) -> None:
        with pytest.raises(RuntimeError, match=r"^batch\['y'\]\[1\]: torch.Tensor: .*\.detach\(\)"):
            pack({"x": 1, "y": [2, torch.ones(3, requires_grad=True) * 2]})

    @pytest.mark.gpu
    def test_gpu_tensors_are_refused_with_the_remedy(self) -> None:
        for leaf in (torch.ones(3, device="cuda"), torch.nn.Parameter(torch.ones(3, device="cuda"))):
            with pytest.raises(RuntimeError, match=r"^batch\[0\]: torch.*: a tensor on cuda:0 .*pin_memory="):
                pack([leaf])

    def test_the_modes_of_the_thread_do_not_matter(self) -> None:
        packed = pack([torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 3).t()])
        weight = torch.ones(2, 2, requires_grad=True)
        with torch.inference_mode():
            batch = unpack(packed.body, [])
        assert not any(tensor.is_inference() for tensor in batch)
        with torch.no_grad():
            batch = unpack(packed.body, [])
        batch[0].add_(weight)
        with torch.device("meta"):
            batch = unpack(packed.body, [])
        assert {tensor.device.type for tensor in batch} == {"cpu"}


class TestSharedStorages:
    def test_overlapping_tensors_still_overlap(self) -> None:
        x = torch.arange(20_000.0).reshape(100, 200)
        packed = pack({"x": x, "t": x.t(), "row": x[7], "int": x.view(torch.int32)[3:, 1:]})
        assert sum(map(len, packed.buffers)) == x.nbytes
        back = unpack(packed.body, arrive(packed))
        back["x"].fill_(3)
        assert back["t"].eq(3).all()
        assert back["row"].eq(3).all()
        assert back["int"].eq(torch.tensor(3.0).view(torch.int32)).all()
        assert back["t"].stride() == x.t().stride()

    def test_neighbours_go_as_one(self) -> None:
        x = torch.rand(3000, 10)[5:]
        back = carried(list(x.split(100)))
        assert len({part.untyped_storage().data_ptr() for part in back}) == 1
        assert torch.equal(torch.cat(back), x)

    def test_views_far_apart_leave_the_large_thing_behind(self) -> None:
        data = torch.rand(2000, 1000)
        batch = [data[i * 30] for i in range(64)]
        packed = pack(batch)
        assert len(packed.body) + sum(map(len, packed.buffers)) < sum(part.nbytes for part in batch) + 5000
        back = unpack(packed.body, arrive(packed))
        assert_same(back, batch)
        assert all(part.untyped_storage().nbytes() == part.nbytes for part in back)

    def test_each_run_of_one_storage_by_itself(self) -> None:
        data = torch.rand(1000, 1000)
        a, b = data[10:20], data[900:910]
        back = carried([a, b, a.t(), b[3], data[500]])
        assert back[0].untyped_storage().data_ptr() == back[2].untyped_storage().data_ptr()
        assert back[1].untyped_storage().data_ptr() == back[3].untyped_storage().data_ptr()
        assert back[0].untyped_storage().nbytes() <= a.nbytes + 16
        assert_same(back, [a, b, a.t(), b[3], data[500]])

    def test_parts_of_odd_size(self) -> None:
        raw = torch.arange(1000, dtype=torch.uint8)
        batch = [raw[3:803], raw[8:808].view(torch.float64), raw[20:40].view(torch.int16), raw[803:]]
        assert_same(carried(batch), batch)

    def test_a_leaf_that_requires_grad_in_a_run(self) -> None:
        data = torch.rand(10)
        batch = [data, data.detach()[2:].requires_grad_()]
        back = carried(batch)
        assert_same(back, batch)
        back[0].fill_(2)
        assert back[1].eq(2).all()

    def test_storages_of_different_lengths_at_one_address(self) -> None:
        array = np.arange(100.0)
        batch = [torch.from_numpy(array[:50]), torch.from_numpy(array), torch.from_numpy(array[20:])]
        assert_same(carried(batch), batch)

    def test_other_kinds_in_the_second_pass(self) -> None:
        x = torch.randn(6, dtype=torch.complex64)
        batch = [x, x[2:], x.conj(), torch.eye(3).to_sparse(), torch.zeros(0), torch.nn.Parameter(x.real)]
        back = carried(batch)
        assert_same(back[:3], batch[:3])
        assert torch.equal(back[3].to_dense(), torch.eye(3))
        assert torch.equal(back[5], batch[5])

    def test_the_same_object_twice_is_one_object(self) -> None:
        x, n = torch.ones(3), np.ones(LARGE)
        back = carried([x, x, n, n, {"x": x}])
        assert back[0] is back[1] is back[4]["x"]
        assert back[2] is back[3]


class Labelled(torch.Tensor):
    pass


class TestOtherTensors:
    def test_subclasses_keep_class_attributes_and_only_their_own_bytes(self) -> None:
        large = torch.rand(1000, 1000)
        tensor = large[5].as_subclass(Labelled)
        tensor.label = "cat"  # type: ignore[attr-defined]
        packed = pack([tensor])
        assert len(packed.body) + sum(map(len, packed.buffers)) < tensor.nbytes + 1000
        (back,) = unpack(packed.body, arrive(packed))
        assert type(back) is Labelled
        assert back.label == "cat"
        assert torch.equal(back.as_subclass(torch.Tensor), large[5])
        assert carried(torch.ones(3).as_subclass(Labelled).requires_grad_()).requires_grad

    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
    def test_torch_takes_apart_what_is_no_stretch_of_memory(self) -> None:
        sparse = torch.eye(300).to_sparse()
        csr = torch.eye(300).to_sparse_csr()
        assert torch.equal(carried(sparse).to_dense(), torch.eye(300))
        assert torch.equal(carried(csr).to_dense(), torch.eye(300))
        assert carried(torch.ones(2, 3, device="meta")).shape == (2, 3)

    @pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated")
    def test_storages_go_out_of_band_too(self) -> None:
        storage, typed = torch.rand(LARGE).untyped_storage(), torch.FloatStorage([1.0, 2.0])
        packed = pack([storage, typed, storage, torch.UntypedStorage(0)])
        assert [len(view) for view in packed.buffers] == [storage.nbytes()]
        back = unpack(packed.body, arrive(packed))
        assert bytes(back[0][:100]) == bytes(storage[:100])
        assert list(back[1]) == [1.0, 2.0]
        assert back[0] is back[2]
        assert back[3].nbytes() == 0

    def test_a_large_parameter_goes_out_of_band(self) -> None:
        parameter = torch.nn.Parameter(torch.rand(LARGE))
        packed = pack(parameter)
        assert [len(view) for view in packed.buffers] == [parameter.nbytes]
        assert_same(unpack(packed.body, arrive(packed)), parameter)


class TestArrays:
    @pytest.mark.parametrize(
        "dtype",
        ["f4", ">f8", "M8[ns]", "m8[s]", "U5", "S3", "V4", "?", "c8", "g", [("a", "i4"), ("b", "2f8")], "V0", "S0"],
    )
    @pytest.mark.parametrize("shape", [(), (0,), (7, 3), (100, 300)], ids=str)
    def test_every_dtype_and_shape(self, dtype: Any, shape: tuple[int, ...]) -> None:
        array = np.zeros(shape, dtype)
        if array.nbytes:
            array = np.frombuffer(bytes(i % 2 for i in range(array.nbytes)), array.dtype).reshape(shape).copy()
        packed = pack(array)
        assert sum(map(len, packed.buffers)) in (0, array.nbytes)
        assert len(packed.body) < LARGE + 2000
        assert_same(unpack(packed.body, arrive(packed)), array)

    @pytest.mark.parametrize("dtype", ["f8", "M8[s]"])
    def test_layouts(self, dtype: str) -> None:
        array = np.arange(40_000).astype(dtype).reshape(200, 200)
        batch = [array.T, array[::2], array[:, 3], array[::-1], np.broadcast_to(array[0], (200, 200))]
        packed = pack(batch)
        assert len(packed.body) < 10_000
        back = unpack(packed.body, arrive(packed))
        assert_same(back, batch)
        assert back[0].flags.f_contiguous
        assert back[1].flags.c_contiguous

    @pytest.mark.parametrize("size", [10, LARGE])
    def test_read_only_ones_stay_so(self, size: int) -> None:
        array = np.arange(size)
        array.flags.writeable = False
        back = carried([array, array[::2]])
        assert not back[0].flags.writeable
        assert not back[1].flags.writeable
        assert carried(np.arange(size)).flags.writeable

    @pytest.mark.parametrize("size", [10, LARGE])
    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_mapped_files_come_by_value_and_writable(self, size: int, mode: Any, tmp_path: Path) -> None:
        np.arange(size, dtype=np.int32).tofile(tmp_path / "x")
        array = np.memmap(tmp_path / "x", np.int32, mode)
        packed = pack(array)
        assert len(packed.buffers) == (size == LARGE)
        back = unpack(packed.body, arrive(packed))
        assert type(back) is np.memmap
        assert np.array_equal(back, array)
        back[0] = 5
        assert array[0] == 0

    def test_objects_scalars_and_subclasses(self) -> None:
        batch = [np.array([{"a": 1}, None], dtype=object), np.float32(3), np.datetime64("2020-01-01"), np.str_("x")]
        back = carried(batch)
        assert back[0][0] == {"a": 1}
        assert_same(back[1:], batch[1:])
        masked = np.ma.masked_array([1, 2], [True, False])
        assert carried(masked).mask.tolist() == [True, False]


Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Sample:
    image: Any
    meta: dict[str, Any]


class Stateful:
    """What it cannot pickle it leaves out itself."""

    def __init__(self, **attributes: Any) -> None:
        self.lock = threading.Lock()
        self.__dict__.update(attributes)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "lock"}


class TestStructure:
    def test_of_every_kind(self) -> None:
        batch = OrderedDict(a=Point(torch.ones(2), "s"), b=({1, 2}, frozenset("x"), b"y", None), c=[3.5, 2**70, True])
        assert_same(carried(batch), batch)
        back = carried(Sample(torch.ones(3), {"k": np.arange(3)}))
        assert type(back) is Sample
        assert torch.equal(back.image, torch.ones(3))
        assert carried(Stateful(x=3)).x == 3

    def test_what_has_no_name_goes_by_value(self) -> None:
        @dataclasses.dataclass
        class Local:
            image: torch.Tensor

        packed = pack([Local(torch.ones(LARGE)), lambda x: x + 1])
        assert len(packed.buffers) == 1
        local, function = unpack(packed.body, arrive(packed))
        assert type(local).__name__ == "Local"
        assert torch.equal(local.image, torch.ones(LARGE))
        assert function(1) == 2

    def test_a_class_of_main_comes_back_as_itself_also_beside_a_lambda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import __main__

        kind = type("OfTheScript", (), {"__module__": "__main__"})
        monkeypatch.setattr(__main__, "OfTheScript", kind, raising=False)
        packed = pack([kind(), lambda: 1])
        assert b"OfTheScript" in packed.body
        newer = type("OfTheScript", (), {"__module__": "__main__"})
        monkeypatch.setattr(__main__, "OfTheScript", newer)
        assert type(unpack(packed.body, [])[0]) is newer


class TestWhatCannotBePickled:
    @pytest.mark.parametrize(
        ("batch", "where"),
        [
            ({"a": torch.ones(2), "meta": [0, 1, threading.Lock()]}, "batch['meta'][2]: _thread.lock"),
            ({3: (0, Point(1, threading.Lock()))}, "batch[3][1].y: _thread.lock"),
            ([Sample(None, {"k": (i for i in ())})], "batch[0].meta['k']: generator"),
            ([Stateful(handle=threading.Lock())], "batch[0].handle: _thread.lock"),
            (threading.Lock(), "batch: _thread.lock"),
            ({(1, threading.Lock()): 2}, "batch, key (1, <unlocked _thread.lock"),
        ],
        ids=["list", "namedtuple", "dataclass", "state", "root", "key"],
    )
    def test_is_named_with_its_place_and_type(self, batch: Any, where: str) -> None:
        with pytest.raises(TypeError) as caught:
            pack(batch)
        assert str(caught.value).startswith(where)
        assert "cannot be pickled" in str(caught.value)
        assert caught.value.__cause__ is not None

    def test_in_an_object_that_says_itself_why(self) -> None:
        class Refusing:
            def __reduce__(self) -> Any:
                raise ValueError("ask me not")

        with pytest.raises(TypeError, match=r"^batch\['x'\]: .*Refusing cannot be pickled, .*: ask me not"):
            pack({"x": Refusing()})

    def test_in_something_that_contains_itself(self) -> None:
        batch: list[Any] = [1]
        batch.append(batch)
        assert carried(batch)[1][0] == 1
        batch.append(threading.Lock())
        with pytest.raises(TypeError, match=r"^batch\[2\]: _thread.lock"):
            pack(batch)

    def test_also_when_its_parts_cannot_be_asked_for(self) -> None:
        class Odd(dict[str, int]):
            def items(self) -> Any:
                raise ValueError("no items")

        with pytest.raises(TypeError, match=r"cannot be pickled, .*: no items"):
            pack([Odd(a=1)])

    def test_lack_of_memory_is_no_fault_of_the_batch(self) -> None:
        class Hungry:
            def __reduce__(self) -> Any:
                raise MemoryError

        with pytest.raises(MemoryError):
            pack(Hungry())


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 5), max_size=4)

    @st.composite
    def build(draw: Any) -> torch.Tensor:
        shape = draw(shapes)
        tensor = random(draw(st.sampled_from(DTYPES)), *shape)
        if draw(st.booleans()) and shape:
            tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        if draw(st.booleans()) and shape and shape[0] > 1:
            tensor = tensor[:: draw(st.integers(1, 3))] if draw(st.booleans()) else tensor[1:]
        if draw(st.booleans()) and tensor.is_floating_point():
            tensor = tensor.detach().requires_grad_()
        return tensor

    return build()


arrays = hnp.arrays(
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.array_dtypes(allow_subarrays=False),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()


def batches(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(), inner)
            | st.builds(Point, inner, inner)
        ),
        max_leaves=8,
    )


@settings(max_examples=40, deadline=None)
@given(batches(tensors() | arrays | scalars))
def test_any_nested_batch(batch: Any) -> None:
    assert_same(carried(batch), batch)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_views_of_one_storage(data: Any) -> None:
    """Values, strides of what was dense, and which bytes are shared: never more of them than the views have."""
    base = torch.arange(240.0)
    views = []
    for _ in range(data.draw(st.integers(1, 5))):
        low = data.draw(st.integers(0, 200))
        view = base[low : low + data.draw(st.sampled_from([4, 12, 24, 40]))]
        view = data.draw(st.sampled_from([view, view[::2], view.reshape(2, -1).t(), view.view(torch.int16), view[:0]]))
        views.append(view)
    packed = pack(views)
    back = unpack(packed.body, arrive(packed))
    assert_same(back, views)
    total = sum(view.nbytes for view in views)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in back}
    assert sum(storages.values()) <= total + 16 * len(views)
