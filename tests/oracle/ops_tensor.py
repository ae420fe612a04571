"""Making, moving and picking elements."""
import numpy as np
from make import Rows, Shape, case, f32, fail, i64, rand

d = lambda x: np.asarray(x, np.float64)

# fills
case("fill_constant", shape=[2, 3], value=1.5, out={"Out": np.full((2, 3), 1.5)})
case("fill_constant", shape=[3], dtype="i64", value=-2, out={"Out": i64([-2, -2, -2])})
case("fill_constant", shape=[2], dtype="bool", value=1, out={"Out": np.array([True, True])})
case("fill_constant", shape=[2], dtype="f16", value=0.5, out={"Out": np.float16([0.5, 0.5])})
case("fill_constant", shape=[100, 1000], value=3.0, out={"Out": np.full((100, 1000), 3.0)})
fail("fill_constant", "attribute 'shape' of fill_constant has unknown dimensions", shape=[-1, 3])
fail("fill_constant", "missing attribute 'shape' of op 'fill_constant'")
case("fill_constant_batch_size_like", Input=rand(4, 2), shape=[7, 3], value=2.0, out={"Out": np.full((4, 3), 2.0)})
case("fill_constant_batch_size_like", Input=rand(4, 2), shape=[7, 3], input_dim_idx=1, output_dim_idx=1, value=2.0,
     out={"Out": np.full((7, 2), 2.0)})
fail("fill_constant_batch_size_like", "axis 2 is outside", Input=Shape(4, 2), shape=[7, 3], input_dim_idx=2)
case("fill_any_like", X=rand(4, 2), value=2.0, out={"Out": np.full((4, 2), 2.0)})
case("fill_any_like", X=rand(4), value=2, dtype="int64", out={"Out": i64([2, 2, 2, 2])})
fail("fill_any_like", "did you mean 'float32'?", X=Shape(4), dtype="flaot32")
case("assign_value", shape=[2, 2], values=[1, 2.5, 3, 4], out={"Out": f32([[1, 2.5], [3, 4]])})
case("assign_value", shape=[2], dtype="i64", ints_values=[1, 2**53 + 1], out={"Out": i64([1, 2**53 + 1])})
fail("assign_value", "shape and values of assign_value conflict", "expected 4 numbers", shape=[2, 2], values=[1, 2])
case("eye", num_rows=3, out={"Out": np.eye(3)})
case("eye", num_rows=2, num_columns=4, dtype="i32", out={"Out": np.eye(2, 4, dtype=np.int32)})
fail("eye", "attributes of eye are out of range", num_rows=-2)
case("range", start=2, end=11, step=3, out={"Out": i64([2, 5, 8])})
case("range", start=1, end=0, step=-0.25, dtype="f32", out={"Out": f32([1, 0.75, 0.5, 0.25])})
fail("range", "attributes of range are out of range", start=0, end=1, step=0)
x = rand(3, 4)
case("assign", X=x, out={"Out": x}, grad="X")
case("assign", X=i64([1, 2]), out={"Out": i64([1, 2])})
r = Rows([1, 3, 1], rand(3, 2, seed=103), 4)
case("assign", X=r, out={"Out": r})
fail("assign", "input slot 'X' of op 'assign' has the wrong size")
case("shape", Input=rand(3, 4, 5), out={"Out": np.int32([3, 4, 5])})
fail("shape", "input slot 'Input' of op 'shape' has the wrong size")
x = f32([[0, 0], [1.5, 0], [0, -0.0], [-2, 3]])
case("nonzero_rows", X=x, out={"Out": Rows([1, 3], f32([[1.5, 0], [-2, 3]]), 4)}, static=True)
case("nonzero_rows", X=f32([[np.nan], [0]]), out={"Out": Rows([0], f32([[np.nan]]), 2)}, static=True)
case("nonzero_rows", X=f32(np.zeros((3, 2))), out={"Out": Shape(3, 2)}, static=True)
fail("nonzero_rows", "input 'X' of nonzero_rows has the wrong number of dimensions", X=Shape(3))
fail("nonzero_rows", "input 'X' of nonzero_rows has the wrong element type", X=Shape(3, 2, dtype="i64"))
index = i64([[0, 2], [1, 3]])
case("one_hot_v2", X=index, depth=4, out={"Out": np.eye(4)[index]})
case("one_hot_v2", X=np.int32([1, 0]), depth=2, dtype="i64", out={"Out": np.eye(2, dtype=np.int64)[[1, 0]]})
case("one_hot_v2", X=i64([1, 7, -1]), depth=2, allow_out_of_range=True, out={"Out": f32([[0, 1], [0, 0], [0, 0]])})
fail("one_hot_v2", "an index of one_hot_v2 is out of range: expected 0 to 3, got 4", X=i64([1, 4]), depth=4)
fail("one_hot_v2", "attribute 'depth' of one_hot_v2 is out of range", X=Shape(2, dtype="i64"), depth=0)
fail("one_hot_v2", "input 'X' of one_hot_v2 has the wrong element type", X=Shape(2), depth=3)


# random numbers: those of the generator, made anew here
def philox(seed, stream, counters):
    state = [np.uint64(counters) & np.uint64(0xFFFFFFFF), np.uint64(counters) >> np.uint64(32),
             np.full(len(counters), stream & 0xFFFFFFFF, np.uint64), np.full(len(counters), stream >> 32, np.uint64)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = state[0] * np.uint64(0xD2511F53), state[2] * np.uint64(0xCD9E8D57)
        state = [(b >> np.uint64(32)) ^ state[1] ^ np.uint64(key[0]), b & low,
                 (a >> np.uint64(32)) ^ state[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(state, 1).ravel()


def units(words):
    return (words >> np.uint64(8)).astype(np.float64) / 2.0**24


def normals(seed, stream, count):
    u = units(philox(seed, stream, np.arange((count + 1) // 2, dtype=np.uint64))).reshape(-1, 2)
    return (np.sqrt(-2 * np.log(1 - u[:, 0])) * np.cos(2 * np.pi * u[:, 1]))[:count]


count = 1000
u = units(philox(42, 7, np.arange((count + 3) // 4, dtype=np.uint64)))[:count]
case("uniform_random", shape=[10, 100], min=-2.0, max=3.0, seed=42, stream=7, out={"Out": (-2 + 5 * u).reshape(10, 100)})
case("uniform_random", shape=[10, 100], stream=7, seed_of_program=42, out={"Out": (-1 + 2 * u).reshape(10, 100)}, run_step=3)
case("uniform_random", shape=[7], dtype="f16", stream=7, seed_of_program=42, out={"Out": (-1 + 2 * u[:7]).astype(np.float16)}, tol="1e-3 1e-3")
case("uniform_random", shape=[200, 1003], stream=1, out={}, stat=["Out mean -0.01 0.01", "Out std 0.57 0.585", "Out min -1 -0.999", "Out max 0.999 1"])
fail("uniform_random", "attributes of uniform_random are out of range", shape=[2], min=1.0, max=0.0)
case("gaussian_random", shape=[10, 100], mean=1.0, std=2.0, seed=42, stream=7, tol="1e-4 2e-5",
     out={"Out": (1 + 2 * normals(42, 7, count)).reshape(10, 100)})
case("gaussian_random", shape=[200, 1003], stream=1, out={}, stat=["Out mean -0.01 0.01", "Out std 0.99 1.01"])
fail("gaussian_random", "attributes of gaussian_random are out of range", shape=[2], std=-1.0)
case("truncated_gaussian_random", shape=[200, 1003], stream=1, mean=1.0, std=0.5, out={},
     stat=["Out mean 0.99 1.01", "Out std 0.43 0.45", "Out min 0 0.01", "Out max 1.99 2"])
fail("truncated_gaussian_random", "attributes of truncated_gaussian_random are out of range", shape=[2], std=-1.0)
words = philox(42, 7, np.arange(count, dtype=np.uint64))
wide = [int(words[2 * i]) | int(words[2 * i + 1]) << 32 for i in range(count)]
numbers = i64([-5 + (word * 11 >> 64) for word in wide])
case("randint", shape=[10, 100], low=-5, high=6, seed=42, stream=7, out={"Out": numbers.reshape(10, 100)})
case("randint", shape=[100], low=-5, high=6, seed=42, stream=7, dtype="i32", out={"Out": numbers[:100].astype(np.int32)})
fail("randint", "attributes of randint are out of range: expected low < high", shape=[2], low=3, high=3)
case("randperm", n=1000, stream=3, out={}, stat=["Out mean 499.5 499.5", "Out min 0 0", "Out max 999 999", "Out std 288.67 288.68"])
case("randperm", n=1, out={"Out": i64([0])})
fail("randperm", "attribute 'n' of randperm is out of range", n=-1)

# together and apart
a, b, c = rand(2, 3, 4, seed=1), rand(2, 5, 4, seed=2), rand(2, 1, 4, seed=3)
case("concat", X=[a, b, c], axis=1, out={"Out": np.concatenate([a, b, c], 1)}, grad="X")
case("concat", X=[a, rand(1, 3, 4, seed=4)], axis=0, out={"Out": np.concatenate([a, rand(1, 3, 4, seed=4)], 0)}, grad="X")
case("concat", X=[a, a], axis=-1, out={"Out": np.concatenate([a, a], -1)}, grad="X")
case("concat", X=[i64([1]), i64([2, 3])], out={"Out": i64([1, 2, 3])})
fail("concat", "input 'X' of concat holds variables with conflicting types or shapes", X=[Shape(2, 3), Shape(3, 4)], axis=1)
fail("concat", "axis 2 is outside", X=[Shape(2, 3)], axis=2)
fail("concat", "missing input 'X' of op 'concat'")
x = rand(2, 6, 4, seed=5)
case("split", X=x, axis=1, num=3, out={"Out": np.split(x, 3, 1)}, grad="X")
case("split", X=x, axis=1, sections=[1, -1, 2], out={"Out": np.split(x, [1, 4], 1)}, grad="X")
case("split", X=x, axis=-1, num=2, out={"Out": np.split(x, 2, -1)}, grad="X")
case("split", X=x, axis=0, num=2, out={"Out": np.split(x, 2, 0)}, grad="X", static=True)
fail("split", "cannot split dimension 1 of X [2, 6, 4]: expected a 'num' that divides 6, got 4", X=Shape(2, 6, 4), axis=1, num=4)
fail("split", "expected 'sections' that add up to 6", X=Shape(2, 6, 4), axis=1, sections=[1, 2])
a, b = rand(2, 3, seed=6), rand(2, 3, seed=7)
for axis in [0, 1, -1]:
    case("stack", X=[a, b], axis=axis, out={"Y": np.stack([a, b], axis)}, grad="X")
    whole = rand(2, 2, 2, seed=8)
    case("unstack", X=whole, axis=axis, num=2, grad="X", out={"Y": [np.take(whole, i, axis) for i in range(2)]})
fail("stack", "input 'X' of stack holds variables with conflicting types or shapes", X=[Shape(2, 3), Shape(3, 2)])
fail("unstack", "attribute 'num' of unstack does not fit X", X=Shape(2, 3), num=3)

# shapes
x = rand(2, 3, 4, seed=9)
case("reshape2", X=x, shape=[0, -1], out={"Out": x.reshape(2, 12)}, grad="X")
case("reshape2", X=x, shape=[4, 6], out={"Out": x.reshape(4, 6)}, grad="X")
case("reshape2", X=x, shape=[-1, 0, 2, 2], out={"Out": x.reshape(2, 3, 2, 2)}, grad="X")
fail("reshape2", "attribute 'shape' of reshape2 does not fit X", X=Shape(2, 3), shape=[4, 2])
fail("reshape2", "attribute 'shape' of reshape2 does not divide the elements of X", X=Shape(2, 3), shape=[-1, 4])
fail("reshape2", "holds more than one dimension to be inferred", X=Shape(2, 3), shape=[-1, -1])
fail("reshape2", "copies a dimension that X does not have", X=Shape(2, 3), shape=[2, 3, 0])
x = rand(2, 1, 3, 1, seed=10)
case("squeeze2", X=x, axes=[1, 3], out={"Out": x.reshape(2, 3)}, grad="X")
case("squeeze2", X=x, axes=[0, 1], out={"Out": x.reshape(2, 3, 1)}, grad="X", static=True)
case("squeeze2", X=x, axes=[-1], out={"Out": x.reshape(2, 1, 3)}, grad="X")
fail("squeeze2", "axis 4 is outside", X=Shape(2, 1, 3, 1), axes=[4])
fail("squeeze2", "attribute 'axes' of squeeze2 does not fit X [2, 1]: expected at least one axis", X=Shape(2, 1), axes=[])
x = rand(2, 3, seed=11)
case("unsqueeze2", X=x, axes=[0, -1], out={"Out": x.reshape(1, 2, 3, 1)}, grad="X")
fail("unsqueeze2", "attribute 'axes' of unsqueeze2 is out of range", X=Shape(2, 3), axes=[4])
x = rand(2, 3, 4, 5, seed=12)
case("flatten2", X=x, axis=2, out={"Out": x.reshape(6, 20)}, grad="X")
case("flatten2", X=x, axis=0, out={"Out": x.reshape(1, 120)}, grad="X")
fail("flatten2", "attribute 'axis' of flatten2 is out of range", X=Shape(2, 3), axis=3)
case("flatten_contiguous_range", X=x, start_axis=1, stop_axis=2, out={"Out": x.reshape(2, 12, 5)}, grad="X")
case("flatten_contiguous_range", X=x, out={"Out": x.reshape(2, 60)}, grad="X")
fail("flatten_contiguous_range", "expected start_axis <= stop_axis", X=Shape(2, 3, 4), start_axis=2, stop_axis=1)
for order in [[0, 2, 3, 1], [3, 2, 1, 0], [1, 0, 2, 3], [0, 2, 1, 3]]:
    case("transpose2", X=x, axis=order, out={"Out": np.transpose(x, order)}, grad="X")
big = rand(130, 70, seed=13)
case("transpose2", X=big, axis=[1, 0], out={"Out": big.T})
big = rand(3, 17, 20, 33, seed=14)
case("transpose2", X=big, axis=[0, 2, 3, 1], out={"Out": np.transpose(big, [0, 2, 3, 1])})
case("transpose2", X=i64([[1, 2], [3, 4]]), axis=[1, 0], out={"Out": i64([[1, 3], [2, 4]])})
case("transpose2", X=np.arange(12, dtype=np.uint8).reshape(3, 4), axis=[1, 0], out={"Out": np.arange(12, dtype=np.uint8).reshape(3, 4).T})
fail("transpose2", "attribute 'axis' of transpose2 is not a permutation", X=Shape(2, 3), axis=[0, 0])

# parts
x = rand(4, 5, 6, seed=15)
case("slice", Input=x, axes=[0, 2], starts=[1, -3], ends=[3, 100], out={"Out": x[1:3, :, -3:]}, grad="Input")
case("slice", Input=x, axes=[1], starts=[2], ends=[3], decrease_axis=[1], out={"Out": x[:, 2]}, grad="Input")
case("slice", Input=x, axes=[1], starts=[3], ends=[3], out={"Out": x[:, 3:3]})
case("slice", Input=rand(3, seed=1), axes=[0], starts=[1], ends=[2], decrease_axis=[0], out={"Out": rand(3, seed=1)[1:2]}, grad="Input")
fail("slice", "attributes of slice differ in length", Input=Shape(4, 5), axes=[0], starts=[0, 1], ends=[1])
fail("slice", "axis 2 is outside", Input=Shape(4, 5), axes=[2], starts=[0], ends=[1])
fail("slice", "attribute 'decrease_axis' of slice drops axis 0", Input=Shape(4, 5), axes=[0], starts=[0], ends=[2], decrease_axis=[0])
case("strided_slice", Input=x, axes=[0, 1, 2], starts=[3, 0, 5], ends=[0, 5, -100], strides=[-1, 2, -2],
     out={"Out": x[3:0:-1, 0:5:2, 5::-2]}, grad="Input")
case("strided_slice", Input=x, axes=[2], starts=[1], ends=[6], strides=[3], out={"Out": x[:, :, 1:6:3]}, grad="Input")
fail("strided_slice", "attribute 'strides' of strided_slice holds a 0", Input=Shape(4), axes=[0], starts=[0], ends=[2], strides=[0])
x = rand(2, 3, seed=16)
case("pad", X=x, paddings=[1, 0, 2, 1], pad_value=0.5, out={"Out": np.pad(x, [(1, 0), (2, 1)], constant_values=0.5)}, grad="X")
fail("pad", "attribute 'paddings' of pad does not fit X: expected 4 numbers", X=Shape(2, 3), paddings=[1, 2])
x = rand(3, 4, 5, seed=17)
case("flip", X=x, axis=[0, -1], out={"Out": np.flip(x, (0, 2))}, grad="X")
case("flip", X=x, axis=[1], out={"Out": np.flip(x, 1)}, grad="X")
fail("flip", "axis 3 is outside", X=Shape(2, 3, 4), axis=[3])
case("roll", X=x, shifts=[1, -2], axis=[0, 2], out={"Out": np.roll(x, (1, -2), (0, 2))}, grad="X")
case("roll", X=x, shifts=[7], out={"Out": np.roll(x, 7)}, grad="X")
case("roll", X=x, shifts=[4], axis=[1], out={"Out": np.roll(x, 4, 1)}, grad="X")
fail("roll", "attributes of roll differ in length", X=Shape(2, 3), shifts=[1, 2])
for diagonal in [0, 1, -2, 9, -9]:
    case("tril_triu", X=x, diagonal=diagonal, out={"Out": np.tril(x, diagonal)}, grad="X")
    case("tril_triu", X=x, diagonal=diagonal, lower=False, out={"Out": np.triu(x, diagonal)}, grad="X")
fail("tril_triu", "input 'X' of tril_triu has the wrong number of dimensions", X=Shape(3))

# repetition
x = rand(2, 1, 3, seed=18)
case("expand_v2", X=x, shape=[4, 2, 5, -1], out={"Out": np.broadcast_to(x, (4, 2, 5, 3))}, grad="X", static=True)
case("expand_v2", X=x, shape=[-1, 4, 3], out={"Out": np.broadcast_to(x, (2, 4, 3))}, grad="X")
fail("expand_v2", "attribute 'shape' of expand_v2 does not fit X", X=Shape(2, 3), shape=[2, 6])
x = rand(2, 3, seed=19)
case("tile", X=x, repeat_times=[2, 3], out={"Out": np.tile(x, (2, 3))}, grad="X")
case("tile", X=x, repeat_times=[2, 1, 2], out={"Out": np.tile(x, (2, 1, 2))}, grad="X")
case("tile", X=x, repeat_times=[2], out={"Out": np.tile(x, 2)}, grad="X")
fail("tile", "attribute 'repeat_times' of tile is out of range", X=Shape(2, 3), repeat_times=[0, 1])

# picking and writing
x, index = rand(5, 4, 3, seed=20), i64([4, 0, 4, 1])
case("gather", X=x, Index=index, out={"Out": x[index]}, grad="X", static=True)
case("gather", X=x, Index=index[:, None], out={"Out": x[index]}, grad="X", static=True)
case("gather", X=x, Index=np.int32([2, 2]), axis=1, out={"Out": x[:, [2, 2]]}, grad="X")
case("index_select", X=x, Index=i64([2, 0]), dim=-1, out={"Out": x[:, :, [2, 0]]}, grad="X")
big, many = rand(100, 130, seed=21), rand(1000, seed=22, low=0, high=100, dtype="int64")
case("gather", X=big, Index=many, out={"Out": big[np.asarray(many)]}, grad="X", static=True, diff="0.5 0.01")
fail("gather", "an index of gather is out of range: expected 0 to 4, got 5", X=Shape(5, 2), Index=i64([1, 5]))
fail("gather", "an index of gather is out of range", X=Shape(5, 2), Index=i64([-1]))
fail("gather", "input 'Index' of gather has the wrong element type", X=Shape(5, 2), Index=Shape(2))
fail("index_select", "axis 2 is outside", X=Shape(5, 2), Index=Shape(2, dtype="i64"), dim=2)
pairs = i64([[0, 1], [4, 3], [0, 1]])
case("gather_nd", X=x, Index=pairs, out={"Out": x[pairs[:, 0], pairs[:, 1]]}, grad="X", static=True)
case("gather_nd", X=x, Index=i64([[[3]], [[1]]]), out={"Out": x[[[3], [1]]]}, grad="X", static=True)
fail("gather_nd", "an index of gather_nd is out of range: expected 0 to 3 in dimension 1, got 4", X=Shape(5, 4), Index=i64([[0, 4]]))
fail("gather_nd", "input 'Index' of gather_nd has the wrong shape", X=Shape(5, 4), Index=Shape(2, 3, dtype="i64"))
x, ids, updates = rand(5, 3, seed=23), i64([4, 0, 2]), rand(3, 3, seed=24)
out = d(x).copy()
out[ids] = updates
case("scatter", X=x, Ids=ids, Updates=updates, out={"Out": out}, grad="X Updates", static=True)
ids = i64([4, 0, 4])
out = d(x).copy()
out[ids] = 0
np.add.at(out, ids, d(updates))
case("scatter", X=x, Ids=ids, Updates=updates, overwrite=False, out={"Out": out}, grad="X Updates", static=True)
fail("scatter", "input 'Updates' of scatter has the wrong shape: expected [3, 2], got [2, 2]", X=Shape(5, 2), Ids=Shape(3, dtype="i64"), Updates=Shape(2, 2))
fail("scatter", "an index of scatter is out of range", X=Shape(5, 2), Ids=i64([7]), Updates=Shape(1, 2))
x, pairs, updates = rand(3, 4, 2, seed=25), i64([[0, 1], [2, 3], [0, 1]]), rand(3, 2, seed=26)
out = d(x).copy()
np.add.at(out, (pairs[:, 0], pairs[:, 1]), d(updates))
case("scatter_nd_add", X=x, Index=pairs, Updates=updates, out={"Out": out}, grad="X Updates")
fail("scatter_nd_add", "an index of scatter_nd_add is out of range", X=Shape(3, 4), Index=i64([[3]]), Updates=Shape(1, 4))
fail("scatter_nd_add", "input 'Updates' of scatter_nd_add has the wrong shape", X=Shape(3, 4), Index=Shape(2, 1, dtype="i64"), Updates=Shape(2, 3))
