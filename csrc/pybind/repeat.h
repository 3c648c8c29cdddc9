// Repetition of calls that Python has checked (sinpe_ext/operations/repetition.py).
//
// Python checks a call of a function once, and passes `keep` the operator that computed it, where its operands come from,
// and for each argument what a later call must have in common with this one, its guard. `repeat` runs the operator for
// other arguments that all guards accept, in a few microseconds, as much as the checks in Python would take each. It knows
// no argument by name, and returns None for a call that no guards accept, which Python then checks.
//
// Python code can run during a call: when a result is allocated (garbage collection), when a seed is drawn, and in other
// threads. So all tensors are described anew after the last Python code, immediately before the kernel.
#pragma once

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "pybind/torch_objects.h"

namespace sinpe_repeat {

// The largest result on the CPU that one thread computes, while it holds Python's lock.
constexpr int64_t kFewElements = 1 << 16;

// The kernels by DLPack's type of device; null: none are loaded. Those of the CPU are not this module's own copy, which has
// threads, and rows that are kept, of its own.
inline const sinpe::Kernels* kernels[] = {nullptr, nullptr, nullptr};

// set_kernels(device_type, address): the struct Kernels of a loaded library (core/kernels.h).
inline PyObject* set_kernels(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const long type = count == 2 ? PyLong_AsLong(items[0]) : -1;
  const auto* offered = static_cast<const sinpe::Kernels*>(count == 2 ? PyLong_AsVoidPtr(items[1]) : nullptr);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if ((type != sinpe::kHostMemory && type != sinpe::kCudaMemory) || offered == nullptr) {
    PyErr_SetString(PyExc_TypeError, "set_kernels: expected a type of device, 1 or 2, and an address");
    return nullptr;
  }
  if (offered->bytes == sizeof(sinpe::Kernels)) kernels[type] = offered;
  Py_RETURN_NONE;
}

// How the elements of a tensor lie in memory, on which the layout of a new tensor can depend.
enum class Memory : int8_t { kContiguous, kDense, kOther };
inline Memory memory_of(const sinpe::View& v) {
  int64_t count = 1;
  bool is_contiguous = true;
  for (int32_t d = v.rank - 1; d >= 0; count *= v.sizes[d--])
    is_contiguous = is_contiguous && (v.sizes[d] == 1 || v.strides[d] == count);
  if (is_contiguous) return Memory::kContiguous;
  return extent_of(v) == count && has_no_internal_overlap(v) ? Memory::kDense : Memory::kOther;
}

constexpr Py_ssize_t kArguments = 16, kTensors = 8, kOperands = 16;

// The arguments of one call, with descriptions of those that are tensors.
struct Arguments {
  PyObject* values;  // a tuple
  Py_ssize_t count;
  uint32_t are_tensors = 0;  // a bit for each argument
  uint32_t need_grad = 0;    // a bit for each tensor
  int32_t n_tensors = 0;
  int8_t tensor_at[kArguments];  // the tensor of an argument
  Described tensors[kTensors];
  Memory memory[kTensors];

  // Returns whether all tensors can be described, and have their own values in memory.
  bool describe_all() {
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* value = PyTuple_GET_ITEM(values, k);
      if (!has_type(value, torch_objects.tensor) && !has_type(value, torch_objects.parameter)) continue;
      if (n_tensors == kTensors || !describe(value, &tensors[n_tensors])) return false;
      tensor_at[k] = static_cast<int8_t>(n_tensors);
      are_tensors |= 1U << k;
      ++n_tensors;
    }
    for (int32_t k = 0; k < n_tensors; ++k) {
      if (!has_own_values(tensors[k])) return false;
      if (needs_grad(tensors[k])) need_grad |= 1U << k;
      memory[k] = memory_of(tensors[k].view);
      if (PyErr_Occurred() != nullptr) return false;
    }
    return true;
  }
  PyObject* operator[](Py_ssize_t k) const { return PyTuple_GET_ITEM(values, k); }
  const Described& tensor(Py_ssize_t k) const { return tensors[tensor_at[k]]; }
};

// Sizes that are equal wherever the same symbol stands. In lists of sizes, a number of 0 or more is the size itself, and -1 - k
// is symbol k.
constexpr int kSymbols = 2 * SINPE_MAX_RANK;
struct Symbols {
  int64_t sizes[kSymbols];
  Symbols() { std::fill(sizes, sizes + kSymbols, -1); }
  bool bind(int64_t code, int64_t size) {
    if (code >= 0) return code == size;
    int64_t& known = sizes[-1 - code];
    if (known < 0) known = size;
    return known == size;
  }
  int64_t size(int64_t code) const { return code >= 0 ? code : sizes[-1 - code]; }
};

// Whether two values are identical, or equal in type and bits. `by_equality`: also whether they are equal objects of a type
// in torch_objects.values, which may run Python code.
inline bool are_same(PyObject* a, PyObject* b, bool by_equality) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a)) return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  if (PyTuple_CheckExact(a) || PyList_CheckExact(a)) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
    bool same = n == PySequence_Fast_GET_SIZE(b);
    for (Py_ssize_t k = 0; same && k < n; ++k)
      same = are_same(PySequence_Fast_GET_ITEM(a, k), PySequence_Fast_GET_ITEM(b, k), false);
    return same;
  }
  if (!by_equality) return false;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(torch_objects.values); ++k) {
    if (!has_type(a, PyTuple_GET_ITEM(torch_objects.values, k))) continue;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  }
  return false;
}

// What arguments must have in common with those of the kept call: the tensor, int, type or value at an index.
struct TensorGuard {
  int8_t at;
  uint8_t kind, bits;
  bool needs_grad;
  Memory memory;
  int32_t device_type, device;
  std::vector<int64_t> sizes;
  Reference convert;  // function of the tensor whose result is the operand; null: the tensor itself
};
// lowest <= value <= highest - rows, which is a size; the value is that of the symbol `size` (0: of none).
struct IntGuard {
  int8_t at;
  int64_t lowest, highest, rows, size;
};
struct ValueGuard {
  int8_t at;
  Reference value;
};

// Where an operand comes from.
struct Source {
  enum Kind : int { kConstant, kArgument, kTensor, kResult, kSeed, kRngOffsets } kind;
  int8_t at = 0;              // kArgument, kTensor: the argument
  sinpe::Operand constant{};  // kConstant
  Reference owner;            // of a constant tensor
  std::vector<int8_t>
      groups{};  // of a tensor: the dimensions that form each dimension of the operand, each group followed by -1
};

// A call that Python has checked.
struct Kept {
  uint32_t are_tensors = 0;
  std::vector<TensorGuard> tensors;
  std::vector<IntGuard> integers;
  std::vector<int8_t> floats;  // finite ones
  std::vector<ValueGuard> types, values;
  sinpe::Op op{};
  std::vector<Source> operands;      // the last one is the result
  std::vector<Described> constants;  // tensors among the operands
  int written = -1;                  // the argument that is written to; -1: a new tensor
  int like = -1;  // the argument whose torch.empty_like is the result; -1: a tensor of `sizes`, `dtype` and `device`
  std::vector<int64_t> sizes;
  Reference dtype, device;
  Reference draw;    // function that draws the seed of dropout; null: the seed is an argument, or there is none
  Reference record;  // function that records the result for autograd; null: nothing needs a gradient
};

constexpr size_t kFunctions = 8, kMostKept = 128;
using Calls = std::vector<std::shared_ptr<const Kept>>;
inline Calls* const calls = new Calls[kFunctions];  // never released: at exit there is no interpreter to do that

inline bool accepts(const Kept& kept, const Arguments& given, bool by_equality, Symbols* symbols) {
  if (kept.are_tensors != given.are_tensors) return false;
  for (const TensorGuard& guard : kept.tensors) {
    const Described& t = given.tensor(guard.at);
    const sinpe::View& v = t.view;
    const bool needs_grad = (given.need_grad >> given.tensor_at[guard.at] & 1) != 0;
    if (t.kind != guard.kind || t.bits != guard.bits || v.device_type != guard.device_type ||
        v.device != guard.device || v.rank != static_cast<int32_t>(guard.sizes.size()) ||
        needs_grad != guard.needs_grad || given.memory[given.tensor_at[guard.at]] != guard.memory)
      return false;
    for (int32_t d = 0; d < v.rank; ++d)
      if (!symbols->bind(guard.sizes[static_cast<size_t>(d)], v.sizes[d])) return false;
  }
  for (const int8_t at : kept.floats)
    if (!PyFloat_CheckExact(given[at]) || !std::isfinite(PyFloat_AS_DOUBLE(given[at]))) return false;
  for (const ValueGuard& guard : kept.types)
    if (!has_type(given[guard.at], guard.value.get())) return false;
  for (const IntGuard& guard : kept.integers) {
    int overflow = 0;
    if (!PyLong_CheckExact(given[guard.at])) return false;
    const int64_t value = PyLong_AsLongLongAndOverflow(given[guard.at], &overflow);
    if (overflow != 0 || value < guard.lowest || (guard.size != 0 && !symbols->bind(guard.size, value))) return false;
    if (value > guard.highest - symbols->size(guard.rows)) return false;
  }
  for (const ValueGuard& guard : kept.values)
    if (!are_same(given[guard.at], guard.value.get(), by_equality)) return false;
  return true;
}

// The kept call whose guards accept the arguments, or null. Those that are used often come first.
inline std::shared_ptr<const Kept> find(size_t function, const Arguments& given, Symbols* symbols) {
  Calls& known = calls[function];
  for (size_t k = 0; k < known.size(); ++k) {  // runs no Python code
    *symbols = {};
    if (!accepts(*known[k], given, false, symbols)) continue;
    std::shared_ptr<const Kept> found = known[k];
    std::swap(known[k], known[k / 2]);
    return found;
  }
  for (size_t k = 0; k < known.size() && PyErr_Occurred() == nullptr; ++k) {
    const std::shared_ptr<const Kept> kept = known[k];  // Python code may change the list
    *symbols = {};
    if (accepts(*kept, given, true, symbols)) return kept;
  }
  return nullptr;
}

// A view of a tensor whose dimensions are groups of its dimensions; returns whether the elements of each group are evenly
// spaced.
inline bool view_groups(const sinpe::View& from, const std::vector<int8_t>& groups, sinpe::View* to) {
  to->data = from.data;
  to->device_type = from.device_type, to->device = from.device;
  to->rank = 0, to->dtype = from.dtype;
  int64_t size = 1, stride = 0;
  for (const int8_t d : groups) {
    if (d < 0) {
      to->sizes[to->rank] = size, to->strides[to->rank++] = stride;
      size = 1, stride = 0;
    } else if (from.sizes[d] != 1) {
      if (size != 1 && stride != from.sizes[d] * from.strides[d]) return false;
      size *= from.sizes[d], stride = from.strides[d];
    }
  }
  return true;
}

// One repetition: its objects, and the operands with the memory to which they refer.
class Repetition {
 public:
  Repetition(const Kept& kept, const Arguments& given, const Symbols& symbols)
      : kept_(kept), given_(given), symbols_(symbols) {}

  // The result, an exception (null), or None if Python has to check the call.
  PyObject* run() {
    if (!convert() || !allocate() || !is_ready()) return in_python();
    const sinpe::Kernels& library = library_for();
    if (kept_.draw.get() != nullptr && !draw(library)) return in_python();
    if (!prepare()) return in_python();
    if (!launch(library)) {
      if (seed_.get() == nullptr || library.in_host_memory) return in_python();
      PyErr_SetString(PyExc_RuntimeError, error_);  // Python would draw a seed a second time
      return nullptr;
    }
    if (kept_.written >= 0 && !increment_version()) return nullptr;
    if (kept_.record.get() == nullptr) return result_.release();
    return PyObject_CallFunctionObjArgs(kept_.record.get(), result_.get(), given_.values,
                                        seed_.get() == nullptr ? Py_None : seed_.get(), nullptr);
  }

 private:
  static PyObject* in_python() {
    clear_runtime_error();  // such as too little memory, where Python raises an error of its own
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }

  // Calls the functions that make operands of arguments, such as `Tensor.long` of int32 ids.
  bool convert() {
    for (const TensorGuard& guard : kept_.tensors) {
      if (guard.convert.get() == nullptr) continue;
      if (n_converted_ == kConverted) return false;
      Converted& made = converted_[n_converted_++];
      made.at = guard.at;
      made.object = Reference(PyObject_CallOneArg(guard.convert.get(), given_[guard.at]));
      if (made.object.get() == nullptr) return false;
    }
    return true;
  }

  bool allocate() {
    if (kept_.written >= 0) {
      if (!is_writable(given_.tensor(kept_.written))) return false;
      result_ = Reference(Py_NewRef(given_[kept_.written]));
    } else if (kept_.like >= 0) {
      result_ = Reference(PyObject_CallOneArg(torch_objects.empty_like, given_[kept_.like]));
    } else {
      const auto rank = static_cast<Py_ssize_t>(kept_.sizes.size());
      const Reference sizes(PyTuple_New(rank));
      for (Py_ssize_t d = 0; sizes.get() != nullptr && d < rank; ++d) {
        PyObject* size = PyLong_FromLongLong(symbols_.size(kept_.sizes[static_cast<size_t>(d)]));
        if (size == nullptr) return false;
        PyTuple_SET_ITEM(sizes.get(), d, size);
      }
      PyObject* call[] = {sizes.get(), kept_.dtype.get(), kept_.device.get()};
      if (sizes.get() != nullptr)
        result_ = Reference(PyObject_Vectorcall(torch_objects.empty, call, 1, names.keywords));
    }
    return result_.get() != nullptr && describe(result_.get(), &out_);
  }

  int64_t elements() const {
    int64_t n = 1;
    for (int32_t d = 0; d < out_.view.rank; ++d) n *= out_.view.sizes[d];
    return n;
  }
  bool is_small() const { return out_.view.device_type == sinpe::kHostMemory && elements() <= kFewElements; }
  const sinpe::Kernels& library_for() const { return *kernels[out_.view.device_type]; }

  // Whether the kernels may be called now. A profiler sees the operator that Python calls, except of calls so short that
  // it would measure itself. Only Python checks values in the memory of a device (SINPE_EXT_CHECK).
  bool is_ready() const {
    const sinpe::Kernels* library = kernels[out_.view.device_type];
    if (library == nullptr) return false;
    if (is_small()) return true;
    if (elements() > library->max_elements || !is(PyObject_CallNoArgs(torch_objects.is_profiled), Py_False))
      return false;
    if (library->in_host_memory) return true;
    const char* check = std::getenv("SINPE_EXT_CHECK");
    return (check == nullptr || *check == 0 || std::strcmp(check, "0") == 0) && library->is_ready(out_.view.device);
  }

  // Draws the seed after all checks, so that a call that raises does not advance the generator.
  bool draw(const sinpe::Kernels& library) {
    seed_value_ = 0;
    if (!prepare() || !call(library, /*check_only=*/true)) return false;
    seed_ = Reference(PyObject_CallOneArg(kept_.draw.get(), given_.values));
    if (seed_.get() == nullptr) return false;
    seed_value_ = PyLong_AsLongLong(seed_.get());
    return PyErr_Occurred() == nullptr;
  }

  // Checks the memory of all tensors, and sets the operands. The last part runs no Python code.
  bool prepare() {
    for (int32_t k = 0; k < given_.n_tensors; ++k)
      if (!is_within_storage(given_.tensors[k])) return false;
    if (PyErr_Occurred() != nullptr) return false;
    for (int32_t k = 0; k < given_.n_tensors; ++k)
      if (!is_unchanged(given_.tensors[k])) return false;
    for (int k = 0; k < n_converted_; ++k)
      if (!describe(converted_[k].object.get(), &converted_[k].tensor)) return false;
    if (!describe(result_.get(), &out_) || !is_apart()) return false;
    for (size_t k = 0; k < kept_.operands.size(); ++k)
      if (!set(kept_.operands[k], &operands_[k], &views_[k])) return false;
    return true;
  }

  // Whether what is written to has no memory in common with what is read, or is exactly the tensor of which it is a result.
  bool is_apart() const {
    if (kept_.written < 0) return true;
    if (!has_no_internal_overlap(out_.view)) return false;
    for (Py_ssize_t k = 0; k < given_.count; ++k) {
      if ((given_.are_tensors >> k & 1) == 0 || k == kept_.written) continue;
      const Described& t = given_.tensor(k);
      if (!are_apart(t, out_) && !(k == kept_.like && are_the_same_memory(t.view, out_.view))) return false;
    }
    return true;
  }

  bool set(const Source& from, sinpe::Operand* operand, sinpe::View* view) {
    operand->kind = sinpe::Operand::kTensor;
    operand->tensor = view;
    switch (from.kind) {
      case Source::kConstant: *operand = from.constant; return true;
      case Source::kArgument: {
        PyObject* value = given_[from.at];
        operand->kind = PyFloat_CheckExact(value) ? sinpe::Operand::kFloat : sinpe::Operand::kInt;
        if (PyFloat_CheckExact(value))
          operand->number = PyFloat_AS_DOUBLE(value);
        else
          operand->integer = PyLong_AsLongLong(value);
        return true;
      }
      case Source::kTensor: {
        const Described* t = &given_.tensor(from.at);
        for (int k = 0; k < n_converted_; ++k)
          if (converted_[k].at == from.at) t = &converted_[k].tensor;
        return view_groups(t->view, from.groups, view);
      }
      case Source::kResult: return view_groups(out_.view, from.groups, view);
      case Source::kSeed:
        operand->kind = sinpe::Operand::kInt;
        operand->integer = seed_value_;
        return true;
      default: return set_rng_offsets(from, operand);
    }
  }

  // The RNG offset (core/philox.h) of each element of the operand: its index in row-major order of the result's own
  // shape.
  bool set_rng_offsets(const Source& from, sinpe::Operand* operand) {
    sinpe::View row_major = out_.view, view;
    int64_t step = 1;
    for (int32_t d = row_major.rank - 1; d >= 0; step *= row_major.sizes[d--]) row_major.strides[d] = step;
    if (!view_groups(row_major, from.groups, &view)) return false;
    rng_offsets_[0] = 0;
    std::copy(view.strides, view.strides + view.rank, rng_offsets_ + 1);
    operand->kind = sinpe::Operand::kInts;
    operand->count = 1 + view.rank;
    operand->integers = rng_offsets_;
    return true;
  }

  bool call(const sinpe::Kernels& library, bool check_only) {
    error_ = library.run(kept_.op, out_.view.device_type == sinpe::kHostMemory ? -1 : out_.view.device, operands_,
                         static_cast<int32_t>(kept_.operands.size()), kept_.written < 0, check_only);
    return error_ == nullptr;
  }

  // Without Python's lock if other threads should not have to wait for it.
  bool launch(const sinpe::Kernels& library) {
    if (!library.in_host_memory || is_small()) return call(library, false);
    PyThreadState* state = PyEval_SaveThread();
    const bool done = call(library, false);
    restore_thread(state);
    return done;
  }

  // When the interpreter exits, a daemon thread does not get the lock again: before 3.14 Python ends the thread, which
  // would unwind the callers, whose destructors need the lock. The thread waits for the end of the process instead.
  static void restore_thread(PyThreadState* state) noexcept {
    try {
      PyEval_RestoreThread(state);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

  bool increment_version() {  // a function in C: no signal handler comes between
    const Reference written(PyTuple_Pack(1, result_.get()));
    const Reference done(
        written.get() == nullptr ? nullptr : PyObject_CallOneArg(torch_objects.increment_version, written.get()));
    return done.get() != nullptr;
  }

  const Kept& kept_;
  const Arguments& given_;
  const Symbols& symbols_;
  struct Converted {
    int8_t at;
    Reference object;
    Described tensor;
  };
  static constexpr int kConverted = 3;
  Converted converted_[kConverted];
  int n_converted_ = 0;
  Reference result_, seed_;
  int64_t seed_value_ = 0;
  Described out_;
  sinpe::Operand operands_[kOperands];
  sinpe::View views_[kOperands];
  int64_t rng_offsets_[1 + SINPE_MAX_RANK];
  const char* error_ = nullptr;
};

// repeat(function, arguments) -> the result, or None if no kept call is like this one.
inline PyObject* repeat(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const size_t function = count == 2 ? PyLong_AsSize_t(items[0]) : kFunctions;
  if (function >= kFunctions || !PyTuple_Check(items[1]) || PyTuple_GET_SIZE(items[1]) > kArguments) {
    PyErr_SetString(PyExc_TypeError, "repeat: expected the number of a function and its arguments as a tuple");
    return nullptr;
  }
  if (dlpack == nullptr || calls[function].empty()) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  Arguments given;
  given.values = items[1], given.count = PyTuple_GET_SIZE(items[1]);
  if (!given.describe_all()) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  Symbols symbols;
  const std::shared_ptr<const Kept> kept = find(function, given, &symbols);
  if (kept == nullptr) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  return Repetition(*kept, given, symbols).run();
}

// Reads the arguments of `keep`. Each function returns false with an exception, or where a call cannot be repeated.
template <class F>
bool for_each(PyObject* tuple, const F& read) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); ++k)
    if (!read(PyTuple_GET_ITEM(tuple, k)) || PyErr_Occurred() != nullptr) return false;
  return true;
}
template <class T>
bool read_numbers(PyObject* tuple, std::vector<T>* to) {
  return for_each(tuple, [to](PyObject* of) { return to->push_back(static_cast<T>(PyLong_AsLongLong(of))), true; });
}

inline bool read_tensor(PyObject* of, const Arguments& given, Kept* kept) {
  TensorGuard guard{};
  PyObject *sizes, *convert;
  if (PyArg_ParseTuple(of, "bO!O", &guard.at, &PyTuple_Type, &sizes, &convert) == 0) return false;
  if (!read_numbers(sizes, &guard.sizes) || (given.are_tensors >> guard.at & 1) == 0) return false;
  const int8_t k = given.tensor_at[guard.at];
  const Described& t = given.tensors[k];
  guard.kind = t.kind, guard.bits = t.bits;
  guard.needs_grad = (given.need_grad >> k & 1) != 0, guard.memory = given.memory[k];
  guard.device_type = t.view.device_type, guard.device = t.view.device;
  if (convert != Py_None) guard.convert = Reference(Py_NewRef(convert));
  kept->are_tensors |= 1U << guard.at;
  kept->tensors.push_back(std::move(guard));
  return true;
}

inline bool read_integer(PyObject* of, Kept* kept) {
  IntGuard g{};
  long long lowest, highest, rows, size;
  if (PyArg_ParseTuple(of, "bLLLL", &g.at, &lowest, &highest, &rows, &size) == 0) return false;
  g.lowest = lowest, g.highest = highest, g.rows = rows, g.size = size;
  kept->integers.push_back(g);
  return true;
}

inline bool read_value(PyObject* of, std::vector<ValueGuard>* to) {
  ValueGuard guard{};
  PyObject* value;
  if (PyArg_ParseTuple(of, "bO", &guard.at, &value) == 0) return false;
  // A copy of a list, which may change.
  guard.value =
      Reference(PyList_CheckExact(value) ? PyList_GetSlice(value, 0, PyList_GET_SIZE(value)) : Py_NewRef(value));
  to->push_back(std::move(guard));
  return true;
}

inline bool read_operand(PyObject* of, Kept* kept) {
  int kind;
  PyObject *value, *groups;
  if (PyArg_ParseTuple(of, "iOO!", &kind, &value, &PyTuple_Type, &groups) == 0) return false;
  Source source{};
  source.kind = static_cast<Source::Kind>(kind);
  if (!read_numbers(groups, &source.groups)) return false;
  sinpe::Operand& c = source.constant;
  if (source.kind == Source::kArgument || source.kind == Source::kTensor) {
    source.at = static_cast<int8_t>(PyLong_AsLong(value));
  } else if (PyFloat_Check(value)) {
    c.kind = sinpe::Operand::kFloat, c.number = PyFloat_AS_DOUBLE(value);
  } else if (PyLong_Check(value)) {
    c.kind = sinpe::Operand::kInt, c.integer = PyLong_AsLongLong(value);
  } else if (PyTuple_Check(value)) {
    c.kind = sinpe::Operand::kInts;  // none
  } else if (value != Py_None) {
    kept->constants.emplace_back();
    if (!describe(value, &kept->constants.back())) return false;
    c.kind = sinpe::Operand::kTensor, c.tensor = &kept->constants.back().view;
    source.owner = Reference(Py_NewRef(value));
  }
  kept->operands.push_back(std::move(source));
  return true;
}

// keep(function, arguments, tensors, integers, floats, types, values, operator, operands, result, draw, record) -> whether
// the call can be repeated; see `Call.keep` in sinpe_ext/operations/repetition.py.
inline PyObject* keep(PyObject*, PyObject* args) {
  Py_ssize_t function;
  int op;
  PyObject *arguments, *tensors, *integers, *floats, *types, *values, *operands, *sizes, *dtype, *device, *draw,
      *record;
  auto kept = std::make_shared<Kept>();
  PyTypeObject* const tuple = &PyTuple_Type;
  if (PyArg_ParseTuple(args, "nO!O!O!O!O!O!iO!(iiO!OO)OO", &function, tuple, &arguments, tuple, &tensors, tuple,
                       &integers, tuple, &floats, tuple, &types, tuple, &values, &op, tuple, &operands, &kept->written,
                       &kept->like, tuple, &sizes, &dtype, &device, &draw, &record) == 0)
    return nullptr;
  if (function < 0 || function >= static_cast<Py_ssize_t>(kFunctions) || PyTuple_GET_SIZE(arguments) > kArguments ||
      PyTuple_GET_SIZE(operands) > kOperands) {
    PyErr_SetString(PyExc_ValueError, "keep: expected fewer functions, arguments and operands");
    return nullptr;
  }
  Arguments given;
  given.values = arguments, given.count = PyTuple_GET_SIZE(arguments);
  kept->op = static_cast<sinpe::Op>(op);
  kept->constants.reserve(kOperands);  // operands point to them
  const bool is_read = dlpack != nullptr && given.describe_all() &&
                       for_each(tensors, [&](PyObject* of) { return read_tensor(of, given, kept.get()); }) &&
                       for_each(integers, [&](PyObject* of) { return read_integer(of, kept.get()); }) &&
                       read_numbers(floats, &kept->floats) &&
                       for_each(types, [&](PyObject* of) { return read_value(of, &kept->types); }) &&
                       for_each(values, [&](PyObject* of) { return read_value(of, &kept->values); }) &&
                       for_each(operands, [&](PyObject* of) { return read_operand(of, kept.get()); }) &&
                       read_numbers(sizes, &kept->sizes);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!is_read || kept->are_tensors != given.are_tensors) Py_RETURN_FALSE;  // such as a tensor of a subclass
  kept->dtype = Reference(Py_NewRef(dtype)), kept->device = Reference(Py_NewRef(device));
  if (draw != Py_None) kept->draw = Reference(Py_NewRef(draw));
  if (record != Py_None) kept->record = Reference(Py_NewRef(record));
  Calls& known = calls[function];
  Calls removed;                             // released at the end, which may run Python code
  for (size_t k = known.size(); k-- > 0;) {  // such as one that is refused each time, for a tensor's strides
    Symbols symbols;
    if (!accepts(*known[k], given, false, &symbols) && k < kMostKept - 1) continue;
    removed.push_back(known[k]);
    known.erase(known.begin() + static_cast<Calls::difference_type>(k));
  }
  known.insert(known.begin(), std::move(kept));
  Py_RETURN_TRUE;
}

// forget(): releases all kept calls.
inline PyObject* forget(PyObject*, PyObject*) {
  for (size_t k = 0; k < kFunctions; ++k) {
    Calls released;
    released.swap(calls[k]);
  }
  Py_RETURN_NONE;
}

// is_intercepted() -> bool, for other calls; False before set_up.
inline PyObject* is_intercepted_method(PyObject*, PyObject*) {
  const int answer = dlpack == nullptr ? 0 : is_intercepted();
  return answer < 0 ? nullptr : PyBool_FromLong(answer);
}

// METH_FASTCALL functions, which PyMethodDef holds under an older type.
template <class F>
PyCFunction as_method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

inline PyMethodDef methods[] = {
    {"set_up", as_method(set_up), METH_FASTCALL,
     "Passes the objects of Python that calls need; returns whether they can be used."},
    {"set_kernels", as_method(set_kernels), METH_FASTCALL, "Passes the address of the kernels of a type of device."},
    {"keep", keep, METH_VARARGS, "Keeps a call that Python has checked; returns whether it can be repeated."},
    {"repeat", as_method(repeat), METH_FASTCALL,
     "Repeats a kept call for other arguments; None if none is like this one."},
    {"forget", forget, METH_NOARGS, "Releases all kept calls."},
    {"is_intercepted", is_intercepted_method, METH_NOARGS,
     "Whether something other than the compiler intercepts the operations of a call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace sinpe_repeat
