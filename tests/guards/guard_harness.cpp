#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "tests/guards/guard_changes.h"
#include "tests/guards/guard_pages.h"
#include "worker/targets/aten/checks/guard.h"
#include "worker/targets/aten/checks/no_warnings.h"
#include "worker/targets/aten/checks/schema.h"
#include "worker/targets/aten/kernels/fft.h"
#include "worker/targets/aten/testing.h"

// Calls ops with arguments that do not fit together, in memory next to inaccessible pages, and reports which calls end
// the process. tests/guards/guards.py makes the samples and evaluates the report.
//   guard_harness FILE worker|torch end|begin PART PARTS [NAME]
// FILE is the output of tests/guards/samples.py. "torch" calls torch's kernels directly, without the worker's checks.
// The overloads are split into PARTS equal parts; this process calls part PART, or only overloads with NAME in their
// names.
namespace torch_remote::worker::aten {
namespace {

using c10::IValue;

constexpr size_t kMostBytes = size_t{64} << 20;  // bound on a tensor's memory
constexpr int kMostMilliseconds = 1500;          // bound on a call's time
constexpr std::string_view kDefault{"\0default", 8};

struct Sample {
  std::string name;
  Arguments args;
  std::vector<IValue> results;  // of an op that torch has no kernel for
};

struct Case {
  size_t sample;
  Change change;
};

enum class Outcome : uint8_t { kNotRun, kRan, kRefused, kNoProgram };

// Memory that the child processes share.
struct Progress {
  std::atomic<size_t> current;
  std::atomic<uint8_t> outcomes[];
};

const c10::Type& without_optional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

at::Tensor as_tensor(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isNone()) return {};
  at::Tensor tensor = at::scalar_tensor(value.toScalar(), value.isDouble() ? at::kDouble : at::kLong);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Converts a value to the schema's type: lists in the file have no element type.
IValue fit(const IValue& value, const c10::Argument& argument) {
  const bool absent = value.isNone() || (value.isString() && value.toStringRef() == kDefault);
  const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
  const c10::Type& type = without_optional(*argument.type());
  if (absent) {
    if (value.isString() && argument.default_value()) return *argument.default_value();
    return type.kind() == c10::TypeKind::TensorType && !optional ? IValue(at::Tensor()) : IValue();
  }
  if (type.kind() == c10::TypeKind::TensorType) return as_tensor(value);
  if (type.kind() == c10::TypeKind::FloatType) return value.toScalar().toDouble();
  if (type.kind() == c10::TypeKind::BoolType) return value.toScalar().toBool();
  if (type.kind() == c10::TypeKind::IntType) return value.toScalar().toLong();
  const auto* list = type.castRaw<c10::ListType>();
  if (list == nullptr) return value;
  std::vector<IValue> items;
  if (value.isList() || value.isTensorList()) {
    for (const IValue& item : value.toListRef()) items.push_back(item);
  } else {
    items.assign(argument.N().value_or(1), value);
  }
  const c10::Type& element = *list->getElementType();
  switch (element.kind()) {
    case c10::TypeKind::TensorType: {
      c10::List<at::Tensor> tensors;
      for (const IValue& item : items) tensors.push_back(as_tensor(item));
      return tensors;
    }
    case c10::TypeKind::OptionalType: {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const IValue& item : items) {
        tensors.push_back(item.isNone() ? std::nullopt : std::optional(as_tensor(item)));
      }
      return tensors;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> numbers;
      for (const IValue& item : items) numbers.push_back(item.toScalar().toDouble());
      return numbers;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> numbers;
      for (const IValue& item : items) numbers.push_back(item.isBool() ? item.toBool() : item.toInt() != 0);
      return numbers;
    }
    case c10::TypeKind::NumberType: {
      c10::impl::GenericList numbers(c10::NumberType::get());
      for (const IValue& item : items) numbers.push_back(item);
      return numbers;
    }
    default: {
      c10::List<int64_t> numbers;
      for (const IValue& item : items) numbers.push_back(item.toScalar().toLong());
      return numbers;
    }
  }
}

// The overloads that a program can name and that the worker does not refuse.
std::vector<std::string> overloads_that_run() {
  std::vector<std::string> all;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
    const auto handle = c10::Dispatcher::singleton().findSchema(op);
    if (!name.starts_with("aten::") || !handle || handle->hasTag(at::Tag::inplace_view)) continue;
    if (handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) && refusal_reason(name) == nullptr) {
      all.push_back(name);
    }
  }
  std::ranges::sort(all);
  return all;
}

std::vector<Sample> read_samples(const char* path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<Sample> samples;
  const IValue rows = torch::jit::pickle_load(bytes);
  for (const IValue& row : rows.toListRef()) {
    const auto parts = row.toListRef();
    Sample sample{parts[0].toStringRef(), {}, {}};
    if (parts.size() > 2) sample.results = parts[2].toListRef().vec();
    const auto& arguments = find_operator(sample.name).schema().arguments();
    const auto values = parts[1].toListRef();
    TORCH_CHECK(values.size() == arguments.size(), sample.name);
    try {
      for (size_t i = 0; i < values.size(); ++i) sample.args.push_back(fit(values[i], arguments[i]));
    } catch (const std::exception& error) {  // for example a tensor where the op takes a number
      std::fprintf(stderr, "%s: %.200s\n", sample.name.c_str(), error.what());
      continue;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<IValue> call_torch(const std::string& name, const Arguments& args) {
  const c10::InferenceMode inference;
  c10::Stack stack = args;
  find_operator(name).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return stack;
}

// The results that a program claims, made from the results of the unchanged call.
IValue result_of(const IValue& result, Change::Results results) {
  const auto one = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (results == Change::Results::kRight) return copy_exactly(tensor);
    std::vector<int64_t> sizes = tensor.sizes().vec();
    for (int64_t& size : sizes) size = results == Change::Results::kOne ? 1 : size + 3;
    return at::zeros(sizes, tensor.options());
  };
  if (result.isTensor()) return one(result.toTensor());
  if (!result.isTensorList()) return result;
  c10::List<at::Tensor> tensors;
  for (const at::Tensor& tensor : result.toTensorVector()) tensors.push_back(one(tensor));
  return tensors;
}

// Calls the op as a program of one node whose buffers are the tensors' memory.
Outcome call_worker(TestRunner& runner, const std::string& name, const Arguments& args,
                    const std::vector<IValue>& results, std::string* message) {
  TestGraph builder;
  try {
    builder.call(name, args, results);
  } catch (const std::exception& error) {  // programs cannot express this argument
    *message = error.what();
    return Outcome::kNoProgram;
  }
  builder.finish();
  std::vector<int64_t> values;
  std::vector<uint64_t> nbytes;
  nbytes.reserve(builder.tensors.size());
  for (const at::Tensor& tensor : builder.tensors) nbytes.push_back(tensor.storage().nbytes());
  Status status = ir::verify(builder.graph);
  if (status.ok()) status = ir::evaluate(builder.graph, builder.params.data(), &values);
  if (status.ok()) status = ir::check_extents(builder.graph, values, nbytes);
  if (!status.ok()) {
    *message = status.message();
    return Outcome::kNoProgram;
  }
  const std::vector<uint8_t> bytes = ir::encode_program(builder.graph);
  const tr_load_options options{sizeof(options), 0, nullptr};
  tr_program* program = nullptr;
  tr_error error{};
  error.struct_size = sizeof(error);
  if (runner.api->load(runner.runner, bytes.data(), bytes.size(), &options, &program, &error) != 0) {
    *message = error.message;
    return Outcome::kRefused;
  }
  std::vector<tr_buffer> buffers(builder.graph.buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const bool input = builder.graph.buffers[i].kind == ir::BufferKind::kInput;
    if (!input && runner.api->allocates_buffer(program, static_cast<uint32_t>(i))) continue;
    buffers[i].data = const_cast<void*>(builder.tensors[i].storage().data());
    buffers[i].nbytes = nbytes[i];
  }
  std::vector<int64_t> words(4096);
  tr_run run{};
  run.struct_size = sizeof(run);
  run.symbols = values.data();
  run.symbols_changed = 1;
  run.last = 1;
  run.buffers = buffers.data();
  run.buffer_count = static_cast<uint32_t>(buffers.size());
  run.result_words = words.data();
  run.result_word_capacity = static_cast<uint32_t>(words.size());
  const int code = runner.api->run(runner.runner, program, &run, &error);
  *message = error.message;
  for (tr_buffer& buffer : buffers) {
    if (buffer.release) buffer.release(buffer.owner);
  }
  runner.api->unload(runner.runner, program);
  return code == 0 ? Outcome::kRan : Outcome::kRefused;
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text.substr(0, 300)) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + '"';
}

class Harness {
 public:
  Harness(std::vector<Sample> samples, bool worker, GuardPlace place)
      : samples_(std::move(samples)), worker_(worker), place_(place) {
    for (size_t s = 0; s < samples_.size(); ++s) {
      const auto& schema = find_operator(samples_[s].name).schema();
      for (Change& change : changes_of(schema, samples_[s].args)) {
        if (worker || change.results == Change::Results::kRight) cases_.push_back({s, std::move(change)});
      }
    }
    const size_t size = sizeof(Progress) + cases_.size();
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "mmap");
    progress_ = static_cast<Progress*>(memory);
  }

  void run() {
    std::map<std::string, int> crashes;  // by overload; each crash costs a process
    for (size_t next = 0; next < cases_.size();) {
      const int status = in_child(next, cases_.size());
      if (status == 0) break;
      const size_t at = progress_->current;
      const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      if (signal == SIGALRM || signal == SIGKILL) {
        ++slow_;
        report("slow", at, "");
        ++crashes[name_of(at)];
      } else {
        report("crash", at, std::to_string(signal ? signal : -WEXITSTATUS(status)));
        ++crashes[name_of(at)];
      }
      next = at + 1;
      if (crashes[name_of(at)] >= most_crashes_) {
        while (next < cases_.size() && name_of(next) == name_of(at)) ++next;
      }
    }
    summarize();
  }

 private:
  const std::string& name_of(size_t c) const { return samples_[cases_[c].sample].name; }

  int in_child(size_t first, size_t last) {
    std::fflush(stdout);
    progress_->current = first;
    const pid_t child = fork();
    if (child == 0) {
      run_cases(first, last);
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  void run_cases(size_t first, size_t last) {
    const rlimit none{0, 0}, space{size_t{16} << 30, size_t{16} << 30};
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_AS, &space);
    use_guard_pages(place_, kMostBytes);
    std::optional<TestRunner> runner;
    if (worker_) {
      runner.emplace(/*inproc=*/true);
      transform_dims_apart();
    }
    for (size_t c = first; c < last; ++c) {
      progress_->current = c;
      std::string message;
      const Outcome outcome = run_case(runner, cases_[c], &message);
      progress_->outcomes[c] = static_cast<uint8_t>(outcome);
      if (cases_[c].change.what.empty() && outcome != Outcome::kRan) {
        report(outcome == Outcome::kNoProgram ? "no program" : "refused", c, message);
      }
    }
  }

  static void limit_time(int milliseconds) {
    const itimerval limit{{0, 0}, {milliseconds / 1000, 1000L * (milliseconds % 1000)}};
    setitimer(ITIMER_REAL, &limit, nullptr);
  }

  Outcome run_case(std::optional<TestRunner>& runner, const Case& c, std::string* message) {
    const Sample& sample = samples_[c.sample];
    limit_time(kMostMilliseconds);
    Outcome outcome = Outcome::kRefused;
    try {
      const auto args_of = [&] {
        Arguments args;
        for (const IValue& arg : sample.args) args.push_back(copy_exactly(arg));
        return args;
      };
      Arguments args = args_of();
      if (c.change.apply) c.change.apply(args);
      if (!worker_) {
        call_torch(sample.name, args);
      } else {
        if (last_sample_ != c.sample) {
          last_results_ = sample.results.empty() ? call_torch(sample.name, args_of()) : sample.results;
          last_sample_ = c.sample;
        }
        std::vector<IValue> results;
        results.reserve(last_results_.size());
        for (const IValue& result : last_results_) results.push_back(result_of(result, c.change.results));
        outcome = call_worker(*runner, sample.name, args, results, message);
        limit_time(0);
        return outcome;
      }
      outcome = Outcome::kRan;
    } catch (const c10::Error& error) {
      *message = error.what_without_backtrace();
    } catch (const std::exception& error) {
      *message = error.what();
    }
    limit_time(0);
    return outcome;
  }

  void report(const char* kind, size_t c, const std::string& text) {
    std::printf("{\"kind\": \"%s\", \"op\": %s, \"change\": %s, \"text\": %s}\n", kind,
                json_text(samples_[cases_[c].sample].name).c_str(), json_text(cases_[c].change.what).c_str(),
                json_text(text).c_str());
    std::fflush(stdout);
  }

  void summarize() {
    std::set<std::string> exercised;
    size_t ran = 0, refused = 0;
    for (size_t c = 0; c < cases_.size(); ++c) {
      const auto outcome = static_cast<Outcome>(progress_->outcomes[c].load());
      ran += outcome == Outcome::kRan;
      refused += outcome == Outcome::kRefused;
      if (cases_[c].change.what.empty() && outcome == Outcome::kRan) exercised.insert(samples_[cases_[c].sample].name);
    }
    std::printf(
        "{\"kind\": \"summary\", \"cases\": %zu, \"ran\": %zu, \"refused\": %zu, \"slow\": %zu, \"exercised\": [",
        cases_.size(), ran, refused, slow_);
    bool first = true;
    for (const std::string& name : exercised) {
      std::printf("%s\"%s\"", first ? "" : ", ", name.c_str());
      first = false;
    }
    std::printf("]}\n");
  }

  std::vector<Sample> samples_;
  std::vector<Case> cases_;
  const bool worker_;
  const int most_crashes_ = 10;
  const GuardPlace place_;
  Progress* progress_;
  size_t slow_ = 0;
  size_t last_sample_ = SIZE_MAX;  // of a child process
  std::vector<IValue> last_results_;
};

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "guard_harness FILE worker|torch end|begin PART PARTS [NAME]\n");
    return 2;
  }
  const NoWarnings quiet;
  at::set_num_threads(1);
  const bool worker = std::string_view(argv[2]) == "worker";
  const size_t part = std::stoul(argv[4]), parts = std::stoul(argv[5]);
  const std::string_view only = argc > 6 ? argv[6] : "";
  std::vector<Sample> samples;
  std::map<std::string, size_t> numbers;  // numbers of the overloads
  for (Sample& sample : read_samples(argv[1])) {
    if (worker ? refusal_reason(sample.name) != nullptr : !sample.results.empty()) continue;
    const size_t number = numbers.try_emplace(sample.name, numbers.size()).first->second;
    if (number % parts == part && sample.name.find(only) != std::string::npos) samples.push_back(std::move(sample));
  }
  if (part == 0) {
    std::printf("{\"kind\": \"overloads\", \"names\": [");
    const char* comma = "";
    for (const std::string& name : overloads_that_run()) {
      std::printf("%s\"%s\"", comma, name.c_str());
      comma = ", ";
    }
    std::printf("]}\n");
  }
  Harness(std::move(samples), worker, std::string_view(argv[3]) == "begin" ? GuardPlace::kBegin : GuardPlace::kEnd)
      .run();
  return 0;
}

}  // namespace
}  // namespace torch_remote::worker::aten

int main(int argc, char** argv) { return torch_remote::worker::aten::main(argc, argv); }
