#include "worker/targets/aten/testing.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>

#include "worker/targets/aten/checks/schema.h"

extern "C" const tr_runner_api* torch_remote_runner_api();

namespace torch_remote::worker::aten {
namespace {

constexpr uint32_t kMaxParams = 1 << 20;  // bound on a graph's parameters while it is built

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

ir::ArgKind list_kind(const c10::TypePtr& element, bool optional) {
  using enum ir::ArgKind;
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
      return optional ? kUnsupported : kTensorList;
    case c10::TypeKind::OptionalType:
      return !optional && element->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType
                 ? kOptionalTensorList
                 : kUnsupported;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return optional ? kOptionalIntList : kIntList;
    case c10::TypeKind::FloatType:
      return optional ? kOptionalFloatList : kFloatList;
    case c10::TypeKind::BoolType:
      return optional ? kUnsupported : kBoolList;
    case c10::TypeKind::NumberType:
      return optional ? kUnsupported : kScalarList;
    default:
      return kUnsupported;
  }
}

ir::ArgKind argument_kind(const c10::Argument& argument) {
  using enum ir::ArgKind;
  c10::TypePtr type = argument.type();
  c10::TypePtr real = argument.real_type();
  bool optional = false;
  if (const auto* inner = type->castRaw<c10::OptionalType>()) {
    optional = true;
    type = inner->getElementType();
    if (const auto* real_inner = real->castRaw<c10::OptionalType>()) real = real_inner->getElementType();
  }
  // In `type` the enums of torch are ints; `real` distinguishes them.
  switch (real->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return kDType;
    case c10::TypeKind::LayoutType:
      return kLayout;
    case c10::TypeKind::MemoryFormatType:
      return kMemoryFormat;
    case c10::TypeKind::DeviceObjType:
      return kDevice;
    default:
      break;
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return optional ? kOptionalTensor : kTensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return optional ? kOptionalInt : kInt;
    case c10::TypeKind::FloatType:
      return optional ? kOptionalFloat : kFloat;
    case c10::TypeKind::BoolType:
      return optional ? kOptionalBool : kBool;
    case c10::TypeKind::NumberType:
      return optional ? kOptionalScalar : kScalar;
    case c10::TypeKind::StringType:
      return optional ? kOptionalString : kString;
    case c10::TypeKind::GeneratorType:
      return kGenerator;
    case c10::TypeKind::DeviceObjType:
      return kDevice;
    case c10::TypeKind::ListType:
      return list_kind(type->castRaw<c10::ListType>()->getElementType(), optional);
    default:
      return kUnsupported;
  }
}

ir::ResultKind result_kind(const c10::TypePtr& type) {
  using enum ir::ResultKind;
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return kTensor;
    case c10::TypeKind::ListType:
      return kTensorList;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return kInt;
    case c10::TypeKind::FloatType:
      return kFloat;
    case c10::TypeKind::BoolType:
      return kBool;
    default:
      return kScalar;
  }
}

struct Signature {
  std::vector<ir::OpaqueArg> args;
  std::vector<ir::ResultDesc> results;
  uint32_t flags = 0;
};

Signature describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  Signature signature;
  bool generator = false;
  bool any_write = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const ir::ArgKind kind = argument_kind(argument);
    generator |= kind == ir::ArgKind::kGenerator;
    any_write |= writes(argument);
    signature.args.push_back({argument.name(), kind, writes(argument), argument.kwarg_only()});
  }
  const bool random = generator || op.hasTag(at::Tag::nondeterministic_seeded);
  if (random && !generator) signature.args.push_back({"generator", ir::ArgKind::kGenerator, false, true});
  if (random) signature.flags |= ir::kOpRandom;
  if (op.hasTag(at::Tag::dynamic_output_shape)) signature.flags |= ir::kOpDynamicShape;
  for (const c10::Argument& result : schema.returns()) {
    ir::ResultDesc desc{result_kind(result.type()), -1};
    if (result.alias_info() && result.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets()) {
          desc.alias = static_cast<int8_t>(i);
        }
      }
    }
    if (desc.kind != ir::ResultKind::kTensor && desc.kind != ir::ResultKind::kTensorList) {
      signature.flags |= ir::kOpHostResult;
    }
    signature.results.push_back(desc);
  }
  if (any_write) signature.flags |= schema.arguments().back().is_out() ? ir::kOpOut : ir::kOpInPlace;
  if (!any_write && !random) signature.flags |= ir::kOpPure;
  return signature;
}

uint64_t bytes_of(const at::Tensor& tensor) { return tensor.storage().nbytes(); }

}  // namespace

void register_if_unknown(std::string_view name) {
  if (ir::find_op(name) != ir::kInvalidOpcode) return;
  const Signature signature = describe(find_operator(name));
  ir::register_opaque(name, signature.args, signature.results, signature.flags);
}

ir::Sym TestGraph::param(int64_t value) {
  params.push_back(value);
  return static_cast<ir::Sym>(params.size() - 1);
}

// As in a recorded trace, sizes 0 and 1 are constants.
ir::Sym TestGraph::size(int64_t value) { return value < 2 ? graph.constant(value) : param(value); }

ir::Arg TestGraph::view(const at::Tensor& tensor, bool fresh) {
  uint32_t buffer = 0;
  while (buffer < tensors.size() && !tensors[buffer].is_alias_of(tensor)) ++buffer;
  if (buffer == tensors.size()) {
    tensors.push_back(tensor);
    graph.buffers.push_back({fresh ? ir::BufferKind::kFresh : ir::BufferKind::kInput, true, false,
                             fresh ? param(static_cast<int64_t>(bytes_of(tensor))) : ir::kNoSym});
  }
  ir::View view;
  view.buffer = buffer;
  view.dtype = static_cast<ir::DType>(tensor.scalar_type());
  for (int64_t s : tensor.sizes()) view.sizes.push_back(size(s));
  for (int64_t s : tensor.strides()) view.strides.push_back(param(s));
  view.offset = param(tensor.storage_offset());
  graph.views.push_back(view);
  ir::Arg arg;
  arg.tag = ir::ArgTag::kView;
  arg.a = static_cast<uint32_t>(graph.views.size() - 1);
  return arg;
}

ir::Arg TestGraph::number(const c10::IValue& value, bool structural) {
  ir::Arg arg;
  int64_t bits;
  if (value.isDouble()) {
    arg.tag = ir::ArgTag::kFloat;
    bits = std::bit_cast<int64_t>(value.toDouble());
  } else if (value.isBool()) {
    arg.tag = ir::ArgTag::kBool;
    bits = value.toBool();
  } else {
    arg.tag = ir::ArgTag::kInt;
    bits = value.toInt();
  }
  arg.a = structural ? graph.constant(bits) : param(bits);
  return arg;
}

ir::Arg TestGraph::value(const ir::ArgDesc& desc, const c10::IValue& value) {
  ir::Arg arg;
  if (desc.role == ir::ArgRole::kClientOnly || value.isNone()) return arg;
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return arg;
    if (tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      const c10::Scalar scalar = tensor.item();
      arg.tag = ir::ArgTag::kScalarTensor;
      arg.a = scalar.isFloatingPoint() ? param(std::bit_cast<int64_t>(scalar.toDouble())) : param(scalar.toLong());
      arg.b = static_cast<uint32_t>(tensor.scalar_type()) | 1 << 8;
      return arg;
    }
    return view(tensor, false);
  }
  if (value.isList() || value.isTensorList()) {
    arg.tag = ir::ArgTag::kList;
    for (const c10::IValue& item : value.toListRef()) arg.items.push_back(this->value(desc, item));
    return arg;
  }
  if (desc.kind == ir::ArgKind::kDType || desc.kind == ir::ArgKind::kMemoryFormat) {
    arg.tag = desc.kind == ir::ArgKind::kDType ? ir::ArgTag::kDType : ir::ArgTag::kMemoryFormat;
    arg.a = static_cast<uint32_t>(value.toInt());
    return arg;
  }
  if (value.isString()) {
    arg.tag = ir::ArgTag::kString;
    arg.text = value.toStringRef();
    return arg;
  }
  const bool is_float = desc.kind == ir::ArgKind::kFloat || desc.kind == ir::ArgKind::kOptionalFloat;
  return number(is_float ? c10::IValue(value.toScalar().toDouble()) : value, desc.role == ir::ArgRole::kStructural);
}

void TestGraph::call(std::string_view op, const std::vector<c10::IValue>& args, const std::vector<c10::IValue>& results,
                     int64_t seed, int64_t offset) {
  register_if_unknown(op);
  const ir::OpDesc& desc = ir::op_desc(ir::find_op(op));
  graph.params = kMaxParams;
  ir::Node node;
  node.opcode = desc.opcode;
  node.record = static_cast<uint32_t>(graph.nodes.size());
  for (size_t i = 0; i < desc.args.size(); ++i) {
    if (desc.args[i].kind == ir::ArgKind::kGenerator) {
      ir::Arg arg;
      arg.tag = ir::ArgTag::kGenerator;
      arg.a = param(seed);
      param(offset);
      node.args.push_back(arg);
    } else {
      node.args.push_back(value(desc.args[i], i < args.size() ? args[i] : c10::IValue()));
    }
  }
  for (size_t i = 0; i < desc.results.size(); ++i) {
    ir::Arg arg;
    if (i < results.size() && desc.results[i].alias < 0) {
      if (results[i].isTensor() && results[i].toTensor().defined()) {
        if (desc.flags & ir::kOpDynamicShape) {
          tensors.push_back(results[i].toTensor());
          graph.buffers.push_back({ir::BufferKind::kFresh, true, false, ir::kNoSym});
          ir::View view;
          view.buffer = static_cast<uint32_t>(tensors.size() - 1);
          view.dynamic = true;
          graph.views.push_back(view);
          arg.tag = ir::ArgTag::kView;
          arg.a = static_cast<uint32_t>(graph.views.size() - 1);
        } else {
          arg = view(results[i].toTensor(), true);
        }
      } else if (results[i].isTensorList()) {
        arg.tag = ir::ArgTag::kList;
        for (const at::Tensor& tensor : results[i].toTensorVector()) arg.items.push_back(view(tensor, true));
      }
    }
    node.results.push_back(std::move(arg));
  }
  graph.nodes.push_back(std::move(node));
}

TestRunner::TestRunner(bool inproc, uint64_t limit, int threads)
    : api(torch_remote_runner_api()), memory(CachingAllocator::create(make_anonymous_source(), limit)) {
  host_ = {sizeof(tr_host),
           TR_RUNNER_ABI,
           this,
           [](void* self, uint64_t nbytes, tr_buffer* buffer) {
             return static_cast<TestRunner*>(self)->memory->allocate(nbytes, buffer) ? 0 : 1;
           },
           [](void* self) { return static_cast<TestRunner*>(self)->client; },
           nullptr,
           0,
           0,
           nullptr,
           nullptr};
  tr_error error{};
  if (api->create(&host_, threads, inproc, &runner, &error) != 0) ADD_FAILURE() << error.message;
}

TestRunner::~TestRunner() { api->destroy(runner); }

// Constants are numbered from kMaxParams on while the graph is built; renumbers them to follow the parameters.
void TestGraph::finish() {
  if (graph.params != kMaxParams) return;
  const uint32_t count = static_cast<uint32_t>(params.size());
  const auto move = [&](ir::Sym& symbol) {
    if (symbol != ir::kNoSym && symbol >= kMaxParams) symbol = symbol - kMaxParams + count;
  };
  for (ir::Buffer& buffer : graph.buffers) move(buffer.nbytes);
  for (ir::View& view : graph.views) {
    for (ir::Sym& symbol : view.sizes) move(symbol);
    for (ir::Sym& symbol : view.strides) move(symbol);
    move(view.offset);
  }
  const std::function<void(ir::Arg&)> move_arg = [&](ir::Arg& arg) {
    using enum ir::ArgTag;
    if (arg.tag == kInt || arg.tag == kFloat || arg.tag == kBool || arg.tag == kComplex) move(arg.a);
    for (ir::Arg& item : arg.items) move_arg(item);
  };
  for (ir::Node& node : graph.nodes) {
    for (ir::Arg& arg : node.args) move_arg(arg);
  }
  graph.params = count;
}

TestRunner::Loaded::Loaded(TestRunner& runner, TestGraph& builder, bool tune) : runner_(runner), builder_(builder) {
  builder.finish();
  const Status valid = ir::verify(builder.graph);
  EXPECT_TRUE(valid.ok()) << valid.message() << "\n" << ir::print(builder.graph);
  const std::vector<uint8_t> bytes = ir::encode_program(builder.graph);
  error.message[0] = 0;
  const tr_load_options options{sizeof(options), tune, nullptr};
  if (runner.api->load(runner.runner, bytes.data(), bytes.size(), &options, &program, &error) != 0) {
    program = nullptr;
  }
  fill_inputs();
}

TestRunner::Loaded::~Loaded() {
  release();
  if (program) runner_.api->unload(runner_.runner, program);
}

void TestRunner::Loaded::release() {
  for (tr_buffer& buffer : buffers) {
    if (buffer.release) buffer.release(buffer.owner);
    buffer = {};
  }
}

void TestRunner::Loaded::fill_inputs() {
  release();
  buffers.assign(builder_.graph.buffers.size(), tr_buffer{});
  for (size_t i = 0; i < buffers.size(); ++i) {
    const bool input = builder_.graph.buffers[i].kind == ir::BufferKind::kInput;
    if (!input && (!program || runner_.api->allocates_buffer(program, static_cast<uint32_t>(i)))) continue;
    const uint64_t nbytes = bytes_of(builder_.tensors[i]);
    ASSERT_TRUE(runner_.memory->allocate(nbytes, &buffers[i]));
    if (input && nbytes) std::memcpy(buffers[i].data, builder_.tensors[i].storage().data(), nbytes);
  }
}

TestRunner::Outcome TestRunner::Loaded::run(bool changed) {
  return run(0, static_cast<uint32_t>(builder_.graph.nodes.size()), changed);
}

TestRunner::Outcome TestRunner::Loaded::run(uint32_t first, uint32_t last, bool changed, bool timed) {
  Outcome outcome;
  if (!program) {
    outcome.code = 1;
    outcome.error = error;
    return outcome;
  }
  if (changed) {
    const Status status = ir::evaluate(builder_.graph, builder_.params.data(), &values_);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  outcome.result_words.resize(256);
  tr_run run{};
  run.struct_size = sizeof(run);
  run.symbols = values_.data();
  run.symbols_changed = changed;
  run.first = first;
  run.last = last;
  run.buffers = buffers.data();
  run.buffer_count = static_cast<uint32_t>(buffers.size());
  run.result_words = outcome.result_words.data();
  run.result_word_capacity = 256;
  if (timed) outcome.times.assign(last - first + 1, 0);
  run.times = timed ? outcome.times.data() : nullptr;
  outcome.code = runner_.api->run(runner_.runner, program, &run, &outcome.error);
  outcome.result_words.resize(run.result_word_count);
  return outcome;
}

at::Tensor TestRunner::Loaded::tensor(uint32_t index) const {
  const ir::View& view = builder_.graph.views[index];
  std::vector<int64_t> sizes, strides;
  for (ir::Sym symbol : view.sizes) sizes.push_back(values_[symbol]);
  for (ir::Sym symbol : view.strides) strides.push_back(values_[symbol]);
  const auto type = static_cast<at::ScalarType>(view.dtype);
  auto* data = static_cast<char*>(buffers[view.buffer].data) + values_[view.offset] * c10::elementSize(type);
  return at::from_blob(data, sizes, strides, at::TensorOptions(type)).clone(at::MemoryFormat::Contiguous);
}

}  // namespace torch_remote::worker::aten
