#include <algorithm>
#include <set>

#include "tests/emulated_gpu/machine.h"

// Graphs, which captures produce.
namespace torch_remote::worker::cuda::emulated {
namespace {

std::shared_ptr<GraphState> find_graph(Call& call, Graph handle) {
  if (!call.ready()) return nullptr;
  auto graph = call.machine->graphs.find(handle);
  if (graph == nullptr) call.error = Result::kInvalidValue;
  return graph;
}

std::shared_ptr<ExecState> find_exec(Call& call, GraphExec handle) {
  if (!call.ready()) return nullptr;
  auto exec = call.machine->execs.find(handle);
  if (exec == nullptr) call.error = Result::kInvalidValue;
  return exec;
}

std::vector<GpuOperation> operations_of(const GraphState& graph) {
  std::vector<GpuOperation> operations;
  for (const auto& node : graph.nodes) operations.push_back(node->operation);
  return operations;
}

size_t index_of(const GraphState& graph, const Node* node) {
  return static_cast<size_t>(std::ranges::find(graph.nodes, node, &std::unique_ptr<Node>::get) - graph.nodes.begin());
}

Result graph_instantiate(GraphExec* handle, Graph graph_handle, unsigned long long flags) {
  Call call("cuGraphInstantiateWithFlags");
  const auto graph = find_graph(call, graph_handle);
  if (graph == nullptr) return call.error;
  if (flags != 0) return Result::kInvalidValue;
  auto exec = std::make_shared<ExecState>();
  exec->graph = graph;
  exec->operations = operations_of(*graph);
  *handle = call.machine->execs.add(std::move(exec));
  return Result::kSuccess;
}

// Whether both graphs have nodes of the same types in the same order, and kernels of the same functions.
bool is_alike(const GraphState& a, const GraphState& b, size_t* where) {
  for (*where = 0; *where < b.nodes.size(); ++*where) {
    if (*where >= a.nodes.size()) return false;
    const Node &x = *a.nodes[*where], &y = *b.nodes[*where];
    if (x.operation.type != y.operation.type || x.after.size() != y.after.size()) return false;
    for (size_t i = 0; i < x.after.size(); ++i) {
      if (index_of(a, x.after[i]) != index_of(b, y.after[i])) return false;
    }
    if ((x.operation.kernel == nullptr) != (y.operation.kernel == nullptr)) return false;
    if (x.operation.kernel && x.operation.kernel->function != y.operation.kernel->function) return false;
  }
  return a.nodes.size() == b.nodes.size();
}

Result graph_exec_update(GraphExec exec_handle, Graph graph_handle, GraphUpdateInfo* info) {
  Call call("cuGraphExecUpdate");
  const auto exec = find_exec(call, exec_handle);
  const auto graph = exec != nullptr ? find_graph(call, graph_handle) : nullptr;
  if (graph == nullptr) return call.error;
  size_t where = 0;
  *info = {};
  if (is_alike(*exec->graph, *graph, &where)) {
    exec->operations = operations_of(*graph);
    return Result::kSuccess;
  }
  constexpr int kTopologyChanged = 2;
  info->result = kTopologyChanged;
  if (where < graph->nodes.size()) info->error_node = handle_of(call, graph, graph->nodes[where].get());
  return Result::kGraphExecUpdateFailure;
}

// A random topological order.
std::vector<size_t> some_order(const GraphState& graph, std::minstd_rand& random) {
  std::vector<size_t> order;
  std::set<const Node*> done;
  while (order.size() < graph.nodes.size()) {
    std::vector<size_t> next;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node* node = graph.nodes[i].get();
      const bool can = std::ranges::all_of(node->after, [&](const Node* before) { return done.contains(before); });
      if (can && !done.contains(node)) next.push_back(i);
    }
    order.push_back(next[random() % next.size()]);
    done.insert(graph.nodes[order.back()].get());
  }
  return order;
}

Result graph_launch(GraphExec exec_handle, Stream handle) {
  Call call("cuGraphLaunch");
  const auto exec = find_exec(call, exec_handle);
  StreamState* stream = exec != nullptr ? call.stream(handle) : nullptr;
  if (stream == nullptr) return call.error;
  if (exec->graph->gpu != call.gpu) return Result::kInvalidValue;
  if (stream->capture) return call.refuse(*stream->capture);  // The real driver would make a child graph of it.
  const StreamPositionPtr before = std::exchange(exec->last, std::make_shared<StreamPosition>());
  auto order = some_order(*exec->graph, stream->random);
  call.machine->enqueue(*stream, {[machine = call.machine, gpu = call.gpu, graph = exec->graph,
                                   operations = exec->operations, order = std::move(order)] {
                                    for (const size_t i : order) {
                                      if (const Result result = machine->run_operation(*gpu, operations[i]);
                                          result != Result::kSuccess) {
                                        return result;
                                      }
                                    }
                                    return Result::kSuccess;
                                  },
                                  before, exec->last});
  return Result::kSuccess;
}

Result graph_exec_destroy(GraphExec handle) {
  Call call("cuGraphExecDestroy");
  if (!call.ready()) return call.error;
  return call.machine->execs.take(handle) != nullptr ? Result::kSuccess : Result::kInvalidValue;
}

Result graph_destroy(Graph handle) {
  Call call("cuGraphDestroy");
  const auto graph = find_graph(call, handle);
  if (graph == nullptr) return call.error;
  for (const auto& [node, node_handle] : graph->handles) call.machine->nodes.take(node_handle);
  graph->handles.clear();
  call.machine->graphs.take(handle);
  return Result::kSuccess;
}

Result graph_get_nodes(Graph handle, GraphNode* nodes, size_t* count) {
  Call call("cuGraphGetNodes");
  const auto graph = find_graph(call, handle);
  if (graph == nullptr) return call.error;
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return Result::kSuccess;
  }
  for (size_t i = 0; i < *count; ++i) {
    nodes[i] = i < graph->nodes.size() ? handle_of(call, graph, graph->nodes[i].get()) : nullptr;
  }
  *count = std::min(*count, graph->nodes.size());
  return Result::kSuccess;
}

std::shared_ptr<NodeState> find_node(Call& call, GraphNode handle) {
  if (!call.ready()) return nullptr;
  auto node = call.machine->nodes.find(handle);
  if (node == nullptr) call.error = Result::kInvalidValue;
  return node;
}

Result graph_node_get_type(GraphNode handle, NodeType* type) {
  Call call("cuGraphNodeGetType");
  const auto node = find_node(call, handle);
  if (node == nullptr) return call.error;
  *type = node->node->operation.type;
  return Result::kSuccess;
}

// The returned `parameters` point into the node.
Result graph_kernel_node_get_params(GraphNode handle, KernelNodeParameters* parameters) {
  Call call("cuGraphKernelNodeGetParams");
  const auto node = find_node(call, handle);
  if (node == nullptr) return call.error;
  KernelCall* kernel = node->node->operation.kernel.get();
  if (kernel == nullptr) return Result::kInvalidValue;
  *parameters = {};
  parameters->function = kernel->handle;
  parameters->grid_x = kernel->grid.x;
  parameters->grid_y = kernel->grid.y;
  parameters->grid_z = kernel->grid.z;
  parameters->block_x = kernel->block.x;
  parameters->block_y = kernel->block.y;
  parameters->block_z = kernel->block.z;
  parameters->shared_bytes = kernel->shared_bytes;
  if (kernel->pointers.empty()) {
    for (std::vector<std::byte>& argument : kernel->arguments) kernel->pointers.push_back(argument.data());
  }
  parameters->parameters = kernel->pointers.data();
  return Result::kSuccess;
}

Result graph_exec_kernel_node_set_params(GraphExec exec_handle, GraphNode node_handle,
                                         const KernelNodeParameters* parameters) {
  Call call("cuGraphExecKernelNodeSetParams");
  const auto exec = find_exec(call, exec_handle);
  const auto node = exec != nullptr ? find_node(call, node_handle) : nullptr;
  if (node == nullptr) return call.error;
  if (node->graph != exec->graph || !node->node->operation.kernel) return Result::kInvalidValue;
  if (call.machine->functions.find(parameters->function) == nullptr) return Result::kInvalidHandle;
  std::shared_ptr<KernelCall> kernel;
  const Result result = make_kernel_call(call, *parameters, &kernel);
  if (result != Result::kSuccess) return result;
  exec->operations[index_of(*exec->graph, node->node)].kernel = std::move(kernel);
  return Result::kSuccess;
}

}  // namespace

GraphNode handle_of(Call& call, const std::shared_ptr<GraphState>& graph, const Node* node) {
  GraphNode& handle = graph->handles[node];
  if (handle == nullptr) handle = call.machine->nodes.add(std::make_shared<NodeState>(NodeState{graph, node}));
  return handle;
}

void add_graph_functions(Driver& driver) {
  driver.graph_instantiate = graph_instantiate;
  driver.graph_exec_update = graph_exec_update;
  driver.graph_launch = graph_launch;
  driver.graph_exec_destroy = graph_exec_destroy;
  driver.graph_destroy = graph_destroy;
  driver.graph_get_nodes = graph_get_nodes;
  driver.graph_node_get_type = graph_node_get_type;
  driver.graph_kernel_node_get_params = graph_kernel_node_get_params;
  driver.graph_exec_kernel_node_set_params = graph_exec_kernel_node_set_params;
}

}  // namespace torch_remote::worker::cuda::emulated
