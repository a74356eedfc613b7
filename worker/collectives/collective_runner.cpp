#include "worker/collectives/collective_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/ops/op_table.h"
#include "worker/collectives/collective_calls.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/direct_copies.h"
#include "worker/collectives/op_queue.h"
#include "worker/collectives/peers.h"

namespace torch_remote::worker {
namespace {

using collective::bytes_of;
using collective::Call;
using collective::form_of;
using collective::kMostRanks;
using collective::Op;

struct Group {
  std::unique_ptr<PeerListener> listener;
  std::unique_ptr<OpQueue> queue;  // Set once the group was joined.
  std::chrono::milliseconds time{0};
  uint64_t sequence = 0;  // Number of the last collective op.
  // The group of all ranks' devices, and whether meet() was called.
  std::shared_ptr<DeviceCollectives::Group> devices;
  bool met = false;
};

using WorkPtr = std::shared_ptr<BackgroundWork>;

class CollectiveProgram;

class CollectiveRunner final : public Runner {
 public:
  explicit CollectiveRunner(CollectiveOptions options)
      : options_(std::move(options)), copies_(options_.host, on_done_, options_.device) {}

  std::string name() const override { return "collectives"; }
  std::string description() const override { return {}; }  // Part of every worker.
  bool accepts(const ir::Graph& graph, uint32_t node) override {
    return ir::op_desc(graph.nodes[node].opcode).name.starts_with(ir::kCollectiveNamespace);
  }
  bool has_op(const char* name) override { return collective::find_op(name).has_value(); }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override;
  bool works_in_background() const override { return true; }
  void skip_node(const ir::Graph& graph, uint32_t node, const int64_t* values, const Status& why) override;
  void end() override {
    *ended_ = true;
    groups_.clear();
    copies_.end();
  }

  // `call` and the memory that it refers to stay valid until the op is done.
  Status begin(Op op, const std::shared_ptr<Call>& call, WorkPtr* work);

 private:
  friend class CollectiveProgram;
  Status listen(Call& call);
  Status join(Call& call, WorkPtr* work);
  Status collective(Op op, const std::shared_ptr<Call>& call, WorkPtr* work);
  // Finds out whether the devices execute the op. The first call asks all ranks.
  Status find_devices(Op op, const Call& call, bool* by_devices);
  Status collective_on_devices(Op op, const std::shared_ptr<Call>& call, WorkPtr* work);
  // Checks that the op comes next in the group's order. Returns an error if one was left out.
  Status check_sequence(Group& group, uint64_t sequence);
  Status message(Op op, const std::shared_ptr<Call>& call, WorkPtr* work);
  Status copy(Op op, const std::shared_ptr<Call>& call, WorkPtr* work);
  Status copy_between_devices(Op op, const Call& call);
  Group* find_group(int64_t number);
  std::function<bool()> interrupted() const;
  OpLimits limits_of(const Group& group) const;

  const CollectiveOptions options_;
  const std::function<void()> look_ = [this] { options_.client->receive_early(); };
  const std::function<void()> on_done_ = [client = options_.client] { client->wake(); };
  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  std::map<int64_t, Group> groups_;
  DirectCopies copies_;
};

class CollectiveProgram final : public RunnerProgram {
 public:
  CollectiveProgram(CollectiveRunner& runner, const ir::Graph& graph) : runner_(runner), graph_(graph) {}

  bool allocates_buffer(uint32_t) const override { return false; }
  bool run(tr_run& run, tr_error* error) override {
    run.result_word_count = 0;
    for (uint32_t n = run.first; n < run.last; ++n) {
      note_time(run, n);
      WorkPtr work;
      Status status = begin_node(run, n, /*stays=*/true, &work);
      if (status.ok() && work) {
        work->wait(runner_.look_);
        status = work->status();
      }
      if (!status.ok()) return refuse(status, n, error);
    }
    note_time(run, run.last);
    return true;
  }
  bool begin(tr_run& run, bool stays, WorkPtr* work, tr_error* error) override {
    run.result_word_count = 0;
    note_time(run, run.first);
    if (const Status status = begin_node(run, run.first, stays, work); !status.ok()) {
      return refuse(status, run.first, error);
    }
    note_time(run, run.last);
    return true;
  }

 private:
  static bool refuse(const Status& status, uint32_t node, tr_error* error) {
    error->node = node;
    error->retry_as_nodes = 0;
    std::snprintf(error->exception_type, sizeof(error->exception_type), "%s",
                  status.exception_type().empty() ? "RuntimeError" : status.exception_type().c_str());
    std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
    return false;
  }
  static void note_time(tr_run& run, uint32_t node) {
    if (run.times == nullptr) return;
    run.times[node - run.first] = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  Status begin_node(tr_run& run, uint32_t number, bool stays, WorkPtr* work);
  Status read_tensor(const tr_run& run, const ir::Arg& arg, Call::Tensor* tensor) const;
  Status fetch(Call::Tensor& tensor) const;
  Status find_failure(const tr_run& run, uint32_t number) const;

  CollectiveRunner& runner_;
  const ir::Graph& graph_;
};

Status CollectiveProgram::read_tensor(const tr_run& run, const ir::Arg& arg, Call::Tensor* tensor) const {
  const ir::View& view = graph_.views[arg.a];
  int64_t count = 1;
  bool dense = true;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    const int64_t size = run.symbols[view.sizes[d]];
    dense &= size == 1 || run.symbols[view.strides[d]] == count;
    count *= size;
  }
  if (!dense && count != 0) {
    return collective_failed("remote: a tensor of a collective op is not contiguous; call .contiguous()", "ValueError");
  }
  const uint64_t item_size = ir::item_size(view.dtype);
  tensor->dtype = view.dtype;
  tensor->nbytes = static_cast<uint64_t>(count) * item_size;
  auto* const data = static_cast<std::byte*>(run.buffers[view.buffer].data);
  tensor->data = data ? data + static_cast<uint64_t>(run.symbols[view.offset]) * item_size : nullptr;
  return {};
}

// Makes the elements available in this process.
Status CollectiveProgram::fetch(Call::Tensor& tensor) const {
  Device& device = *runner_.options_.device;
  if (device.is_host_memory()) {
    tensor.bytes = {static_cast<std::byte*>(tensor.data), tensor.nbytes};
    return {};
  }
  tensor.copy.resize(tensor.nbytes);
  tensor.bytes = tensor.copy;
  if (tensor.nbytes == 0) return {};
  const std::array<int64_t, 1> sizes{static_cast<int64_t>(tensor.nbytes)}, strides{1};
  device.copy_out({tensor.data, 1, sizes, strides}, tensor.copy.data(), nullptr);
  return device.wait(device.record());
}

// Returns the failure of what the node reads, on a device that reports failures late: other workers must not receive
// invalid data. For earlier runs the affected buffers are not known any more, so any of their failures that was not
// reported yet counts.
Status CollectiveProgram::find_failure(const tr_run& run, uint32_t number) const {
  for (const DeferredFailure& late : runner_.options_.device->await_failures()) {
    if (late.run_id != run.run_id) return late.error;
    std::vector<bool> lacks(graph_.buffers.size());
    for (uint32_t n = late.node; n <= number; ++n) {
      bool needs = n == late.node;
      ir::for_each_access(graph_.nodes[n], [&](uint32_t view, ir::Access access) {
        const bool reads = access == ir::Access::kReads || access == ir::Access::kUpdates;
        needs = needs || (reads && lacks[graph_.views[view].buffer]);
      });
      if (n == number && needs) return late.error;
      ir::for_each_access(graph_.nodes[n], [&](uint32_t view, ir::Access access) {
        if (needs && access != ir::Access::kReads) lacks[graph_.views[view].buffer] = true;
      });
    }
  }
  return {};
}

Status CollectiveProgram::begin_node(tr_run& run, uint32_t number, bool stays, WorkPtr* work) {
  const ir::Node& node = graph_.nodes[number];
  const Op op = *collective::find_op(ir::op_desc(node.opcode).name);
  const collective::OpForm& form = form_of(op);
  const auto shared = std::make_shared<Call>();
  Call& call = *shared;
  call.tensors.reserve(form.args.size());
  const bool between_devices = (op == Op::kCopySend || op == Op::kCopyReceive) &&
                               runner_.copies_.is_between_devices(run.symbols[node.args[1].a]);
  for (size_t i = 0; i < form.args.size(); ++i) {
    const ir::Arg& arg = node.args[i];
    switch (form.args[i]) {
      case 'i':
        call.numbers.push_back(run.symbols[arg.a]);
        break;
      case 's':
        call.text = arg.text;
        break;
      case 'l':
        call.lists.emplace_back();
        for (const ir::Arg& item : arg.items) call.lists.back().push_back(run.symbols[item.a]);
        break;
      default:
        call.tensors.emplace_back();
        if (Status status = read_tensor(run, arg, &call.tensors.back()); !status.ok()) return status;
    }
  }
  bool by_devices = false;
  if (Status status = runner_.find_devices(op, call, &by_devices); !status.ok()) return status;
  Device& device = *runner_.options_.device;
  // The copy stays until the other end has taken it, which may be late, and the number of copies is not bounded.
  if ((op == Op::kSend || op == Op::kCopySend) && !between_devices && !by_devices &&
      !(stays && device.is_host_memory())) {
    Call::Tensor& sent = call.tensors[0];
    if (Status status = sent.charge.take(&device.memory(), sent.nbytes, "a tensor that is sent"); !status.ok()) {
      return status;
    }
  }
  for (Call::Tensor& tensor : call.tensors) {
    if (between_devices || by_devices) break;
    if (Status status = fetch(tensor); !status.ok()) return status;
  }
  if (sends_data(op)) {
    Status failure = find_failure(run, number);
    if (!failure.ok() && op == Op::kCopySend) {  // The other end reports the failure.
      runner_.copies_.send_failure(call.numbers[0], call.numbers[1], failure);
      return {};
    }
    if (!failure.ok()) return failure;
  }
  if (between_devices) return runner_.copy_between_devices(op, call);
  if (by_devices) {
    Status status = runner_.collective_on_devices(op, shared, work);
    if (!status.ok() || stays) return status;
    (*work)->wait(runner_.look_);
    status = (*work)->status();
    *work = nullptr;
    return status;
  }
  if ((op == Op::kSend || op == Op::kCopySend) && device.is_host_memory() && !stays) {
    Call::Tensor& sent = call.tensors[0];
    sent.copy.assign(sent.bytes.begin(), sent.bytes.end());
    sent.bytes = sent.copy;
  }
  if (Status status = runner_.begin(op, shared, work); !status.ok()) return status;
  // Sends and connects need no wait: sent data is in memory that stays valid, and the plan was read.
  if (op == Op::kSend || op == Op::kJoin || op == Op::kCopySend || op == Op::kCopyAccept ||
      (stays && device.is_host_memory())) {
    return {};
  }
  if (*work) {
    (*work)->wait(runner_.look_);
    if (Status status = (*work)->status(); !status.ok()) return status;
    *work = nullptr;
  }
  if (device.is_host_memory()) return {};
  size_t tensor = 0;
  for (const char arg : form.args) {
    if (arg != 'T' && arg != 't') continue;
    Call::Tensor& written = call.tensors[tensor++];
    if (arg == 't' || written.nbytes == 0) continue;
    const auto keep = std::make_shared<std::vector<std::byte>>(std::move(written.copy));
    device.copy_in(written.data, *keep, keep);
  }
  return {};
}

Status CollectiveRunner::load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) {
  for (uint32_t n = 0; n < request.graph.nodes.size(); ++n) {
    if (request.may_run[n] == 0 || !accepts(request.graph, n)) continue;
    const ir::Node& node = request.graph.nodes[n];
    const std::string_view name = ir::op_desc(node.opcode).name;
    const std::optional<Op> op = collective::find_op(name);
    if (!op) return {ErrorCode::kUnsupported, "remote: this worker has no op " + std::string(name)};
    if (Status status = check_node(node, form_of(*op)); !status.ok()) return status;
  }
  *program = std::make_unique<CollectiveProgram>(*this, request.graph);
  return {};
}

Group* CollectiveRunner::find_group(int64_t number) {
  const auto found = groups_.find(number);
  return found == groups_.end() ? nullptr : &found->second;
}

Status no_group() {
  return collective_failed(
      "remote: this worker is not in the process group; call torch.distributed.init_process_group again "
      "(torch.remote.restart() ends the groups of the previous worker)");
}

Status CollectiveRunner::listen(Call& call) {
  if (options_.host.empty()) {
    return collective_failed(
        "remote: this worker accepts no connections of other workers; start it with --peer-host HOST, an address by "
        "which the workers of other ranks reach it");
  }
  Call::Tensor &port = call.tensors[0], &host = call.tensors[1];
  if (port.dtype != ir::DType::kInt64 || port.nbytes != 8 || host.dtype != ir::DType::kUInt8 ||
      options_.host.size() >= host.nbytes) {
    return Status::invalid("remote: the tensor for a worker's address has the wrong size");
  }
  Group group;
  if (Status status = PeerListener::open(options_.host, &group.listener); !status.ok()) return status;
  const int64_t number = group.listener->address().port;
  std::memcpy(port.bytes.data(), &number, sizeof(number));
  std::ranges::fill(host.bytes, std::byte{0});
  std::memcpy(host.bytes.data(), options_.host.data(), options_.host.size());
  groups_.erase(call.numbers[0]);  // An op that still uses the old listener ends first.
  groups_.emplace(call.numbers[0], std::move(group));
  return {};
}

OpLimits CollectiveRunner::limits_of(const Group& group) const {
  OpLimits limits;
  limits.time = group.time;
  limits.interrupted = interrupted();
  return limits;
}

// Whether an op that begins now must end.
std::function<bool()> CollectiveRunner::interrupted() const {
  return [ended = ended_, client = options_.client, sequence = options_.client->current_message()] {
    return *ended || client->is_over(sequence);
  };
}

Status CollectiveRunner::join(Call& call, WorkPtr* work) {
  Group* const group = find_group(call.numbers[0]);
  if (group == nullptr) return no_group();
  const int64_t rank = call.numbers[1], size = call.numbers[2], timeout = call.numbers[3];
  const auto damaged = [] { return Status::invalid("remote: the plan of a process group is damaged"); };
  if (!group->listener || size < 1 || size > kMostRanks || rank < 0 || rank >= size || timeout < 1) return damaged();
  GroupPlan plan;
  plan.rank = static_cast<int>(rank);
  std::string_view text(reinterpret_cast<const char*>(call.tensors[0].bytes.data()), call.tensors[0].bytes.size());
  if (!read_secret(take_line(text), &plan.secret)) return damaged();
  for (int64_t r = 0; r < size; ++r) {
    remote::Address address;
    const std::string_view line = take_line(text);
    if (!line.empty() && !remote::parse_address(line, line, &address).ok()) return damaged();
    plan.addresses.push_back(std::move(address));
  }
  if (options_.collectives && options_.collectives->open().ok()) plan.capabilities = kHasDeviceCollectives;
  group->time = std::chrono::milliseconds(timeout);
  if (!group->queue)
    group->queue = std::make_unique<OpQueue>(plan.rank, static_cast<int>(size), on_done_,
                                             MeshOptions{.memory = &options_.device->memory()});
  *work = group->queue->connect(
      [listener = group->listener.get(), plan = std::move(plan), limits = limits_of(*group)](Mesh& mesh) {
        if (Status status = mesh.status(); !status.ok()) return status;
        const Status status = worker::join(*listener, plan, limits, mesh);
        return status.ok() ? status : mesh.fail(status);
      });
  return {};
}

Status not_joined() { return collective_failed("remote: the process group was not joined"); }

Status CollectiveRunner::check_sequence(Group& group, uint64_t sequence) {
  Mesh& mesh = group.queue->mesh();
  if (sequence != group.sequence + 1) {
    return mesh.fail(collective_failed("remote: rank " + std::to_string(mesh.rank()) +
                                       " skipped collective op number " + std::to_string(group.sequence + 1) +
                                       " of the process group, because an op that it depends on failed or was "
                                       "cancelled; fix that op, then create a new process group"));
  }
  group.sequence = sequence;
  return {};
}

Status CollectiveRunner::collective(Op op, const std::shared_ptr<Call>& call, WorkPtr* work) {
  Group* const group = find_group(call->numbers[0]);
  if (group == nullptr) return no_group();
  if (!group->queue) return not_joined();
  Mesh& mesh = group->queue->mesh();
  const auto sequence = static_cast<uint64_t>(call->numbers[1]);
  if (Status status = check_sequence(*group, sequence); !status.ok()) return status;
  Reduction reduction = Reduction::kSum;
  if (!call->text.empty()) {
    const auto found = reduction_from_name(call->text);
    if (!found) return mesh.fail(Status::invalid("remote: an unknown reduction " + std::string(call->text)));
    reduction = *found;
  }
  *work = group->queue->add([op, call, reduction, sequence, limits = limits_of(*group)](Mesh& mesh) {
    const Status status = perform(op, *call, reduction, Collectives(mesh, sequence, limits));
    // An op that this rank could not execute fails on the other ranks, too.
    return status.ok() ? status : mesh.fail(status);
  });
  return {};
}

// Invalid arguments are left to the hosts' path, which reports them. All ranks decide alike.
Status CollectiveRunner::find_devices(Op op, const Call& call, bool* by_devices) {
  *by_devices = false;
  if (!options_.collectives || device_op_of(op) == CollectiveOp::kNone) return {};
  Group* const group = find_group(call.numbers[0]);
  if (group == nullptr || !group->queue || !options_.collectives->open().ok()) return {};
  if (!group->met) {
    std::string why;
    const WorkPtr work = group->queue->add([this, group, &why, limits = limits_of(*group)](Mesh& mesh) {
      // All ranks are connected here.
      if (!all_have_device_collectives(mesh)) return mesh.status();
      return worker::meet(mesh, *options_.collectives, limits, &group->devices, &why);
    });
    work->wait(look_);
    if (Status status = work->status(); !status.ok()) return status;
    group->met = true;
    if (!why.empty()) spdlog::warn("collective ops go through the hosts' memory: {}", why);
  }
  if (group->devices == nullptr) return {};
  const auto reduction = call.text.empty() ? Reduction::kSum : reduction_from_name(call.text);
  const bool one_dtype = call.tensors.size() < 2 || call.tensors[0].dtype == call.tensors[1].dtype;
  const int64_t root = op == Op::kReduce || op == Op::kBroadcast ? call.numbers[2] : 0;
  *by_devices = reduction && one_dtype && root >= 0 && root < group->queue->mesh().size() &&
                group->devices->supports(device_op_of(op), call.tensors[0].dtype, *reduction);
  return {};
}

Status CollectiveRunner::collective_on_devices(Op op, const std::shared_ptr<Call>& call, WorkPtr* work) {
  Group& group = *find_group(call->numbers[0]);
  const auto sequence = static_cast<uint64_t>(call->numbers[1]);
  if (Status status = check_sequence(group, sequence); !status.ok()) return status;
  const Call::Tensor &output = call->tensors[0], &input = call->tensors.size() > 1 ? call->tensors[1] : output;
  const auto ranks = static_cast<uint64_t>(group.queue->mesh().size());
  const auto own = static_cast<size_t>(group.queue->mesh().rank());
  DeviceCollectives::Call made;
  made.op = device_op_of(op);
  made.dtype = output.dtype;
  if (!call->text.empty()) made.reduction = *reduction_from_name(call->text);
  if (op == Op::kReduce || op == Op::kBroadcast) made.root = static_cast<int>(call->numbers[2]);
  made.input = input.data;
  made.output = output.data;
  made.input_bytes = input.nbytes;
  made.output_bytes = output.nbytes;
  made.after = options_.collectives->mark();
  Label label;
  label.op = static_cast<uint8_t>(made.op);
  label.dtype = static_cast<uint8_t>(made.dtype);
  if (has_reduction(made.op)) label.reduction = static_cast<uint8_t>(made.reduction);
  if (has_root(made.op)) label.root = made.root;
  label.sequence = sequence;
  label.count = op == Op::kAllToAll ? 0 : input.nbytes / ir::item_size(made.dtype);
  const auto sends = std::make_shared<std::vector<uint64_t>>(), receives = std::make_shared<std::vector<uint64_t>>();
  if (op == Op::kAllToAll) {
    *receives = bytes_of(call->lists[0], made.dtype);
    *sends = bytes_of(call->lists[1], made.dtype);
  }
  const auto sum = [](const std::vector<uint64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  };
  const bool fits = op == Op::kAllGather       ? output.nbytes == ranks * input.nbytes
                    : op == Op::kReduceScatter ? input.nbytes == ranks * output.nbytes
                    : op == Op::kAllToAll
                        ? sends->size() == ranks && receives->size() == ranks && sum(*sends) == input.nbytes &&
                              sum(*receives) == output.nbytes && (*sends)[own] == (*receives)[own]
                        : true;
  if (!fits)
    return group.queue->mesh().fail(
        collective_failed("remote: " + describe(label) + " got tensors of sizes that do not match"));
  *work = group.queue->add(
      [made, label, sends, receives, devices = group.devices, limits = limits_of(group)](Mesh& mesh) mutable {
        made.sends = *sends;
        made.receives = *receives;
        const Status status = run_on_devices(mesh, *devices, label, made, limits);
        return status.ok() ? status : mesh.fail(status);
      });
  return {};
}

Status CollectiveRunner::message(Op op, const std::shared_ptr<Call>& call, WorkPtr* work) {
  Group* const group = find_group(call->numbers[0]);
  if (group == nullptr) return no_group();
  if (!group->queue) return not_joined();
  const Call::Tensor& tensor = call->tensors[0];
  const Label label = message_label(tensor.dtype, static_cast<uint64_t>(call->numbers.back()), tensor.nbytes);
  const auto peer = static_cast<int>(std::clamp<int64_t>(call->numbers[1], -1, kMostRanks));
  if (op != Op::kReceiveAny) {
    if (Status status = check_peer(group->queue->mesh(), peer); !status.ok()) return status;
  }
  if (op == Op::kSend) {
    *work = group->queue->send({peer, label, tensor.bytes}, limits_of(*group), call);
  } else if (op == Op::kReceive) {
    *work = group->queue->receive({peer, label, tensor.bytes}, limits_of(*group), [call](int) {});
  } else {
    if (call->tensors[1].nbytes != 8) return Status::invalid("remote: the tensor for a rank has the wrong size");
    *work = group->queue->receive({kAnyPeer, label, tensor.bytes}, limits_of(*group), [call](int sender) {
      const int64_t from = sender;
      std::memcpy(call->tensors[1].bytes.data(), &from, sizeof(from));
    });
  }
  return {};
}

std::string_view text_of(const Call::Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

void put_text(const std::string& text, const Call::Tensor& tensor) {
  std::ranges::fill(tensor.bytes, std::byte{0});
  std::memcpy(tensor.bytes.data(), text.data(), std::min(text.size(), tensor.bytes.size()));
}

Status CollectiveRunner::copy(Op op, const std::shared_ptr<Call>& call, WorkPtr* work) {
  Call::Tensor& tensor = call->tensors[0];
  const int64_t pair = call->numbers[0];
  switch (op) {
    case Op::kCopyListen:
      put_text(copies_.listen(pair), tensor);
      return {};
    case Op::kCopyAccept:
      return copies_.accept(pair, text_of(tensor), interrupted(), work);
    case Op::kCopyConnect: {
      const auto answered = [call](const std::string& answer) { put_text(answer, call->tensors[0]); };
      return copies_.connect(pair, text_of(call->tensors[1]), interrupted(), answered, work);
    }
    case Op::kCopySend:
      return copies_.send(pair, call->numbers[1], tensor.dtype, tensor.bytes, call, interrupted(), work);
    case Op::kCopyReceive:
      return copies_.receive(pair, call->numbers[1], tensor.dtype, tensor.bytes, call, interrupted(), work);
    default:
      copies_.close(pair, call->numbers[1] != 0, look_);
      return {};
  }
}

Status CollectiveRunner::copy_between_devices(Op op, const Call& call) {
  const Call::Tensor& tensor = call.tensors[0];
  const int64_t pair = call.numbers[0], number = call.numbers[1];
  if (op == Op::kCopySend) {
    return copies_.send_from(pair, number, tensor.dtype, tensor.data, tensor.nbytes, interrupted());
  }
  return copies_.receive_to(pair, number, tensor.dtype, tensor.data, tensor.nbytes, interrupted(), look_);
}

// Makes sure that the other end does not wait for data that never arrives, and that data which arrives is dropped.
void CollectiveRunner::skip_node(const ir::Graph& graph, uint32_t index, const int64_t* values, const Status& why) {
  const ir::Node& node = graph.nodes[index];
  const std::optional<Op> op = collective::find_op(ir::op_desc(node.opcode).name);
  if (!op || !check_node(node, form_of(*op)).ok()) return;
  if (*op != Op::kCopySend && *op != Op::kCopyReceive) return;
  const ir::View& view = graph.views[node.args[0].a];
  const int64_t pair = values[node.args[1].a], number = values[node.args[2].a];
  if (*op == Op::kCopySend) return copies_.send_failure(pair, number, why);
  int64_t count = 1;
  for (const uint32_t size : view.sizes) count *= values[size];
  copies_.drop(pair, number, view.dtype, static_cast<uint64_t>(count) * ir::item_size(view.dtype));
}

Status CollectiveRunner::begin(Op op, const std::shared_ptr<Call>& call, WorkPtr* work) {
  *work = nullptr;
  switch (op) {
    case Op::kListen:
      return listen(*call);
    case Op::kJoin:
      return join(*call, work);
    case Op::kLeave:
      if (Group* const group = find_group(call->numbers[0]); group != nullptr && group->queue) {
        group->queue->wait_all(look_);
      }
      groups_.erase(call->numbers[0]);
      return {};
    case Op::kSend:
    case Op::kReceive:
    case Op::kReceiveAny:
      return message(op, call, work);
    case Op::kCopyListen:
    case Op::kCopyAccept:
    case Op::kCopyConnect:
    case Op::kCopySend:
    case Op::kCopyReceive:
    case Op::kCopyLeave:
      return copy(op, call, work);
    default:
      return collective(op, call, work);
  }
}

}  // namespace

std::unique_ptr<Runner> make_collective_runner(CollectiveOptions options) {
  return std::make_unique<CollectiveRunner>(std::move(options));
}

}  // namespace torch_remote::worker
