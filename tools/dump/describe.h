#pragma once

#include <span>
#include <string>

#include "remote/capture/capture.h"
#include "tools/common/capture_summary.h"
#include "tools/common/graph_json.h"

// The text and JSON output of remote-dump; docs/tools.md describes the JSON.
namespace torch_remote::tools {

inline constexpr const char* kCaptureSchema = "torch-remote.capture/1";

// The graph as text that remote-opt can read, below a comment with the numbers of ops, buffers and parameters.
// `remarks`: comments after the ops, one per op; or empty.
std::string graph_text(const ir::Graph& graph, std::span<const std::string> remarks);

std::string capture_text(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary);
Json capture_json(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary);

// A program's runs and parameters, as comments: the parameters that differ between runs, or all that the graph uses.
std::string params_text(const ProgramSummary& program, const ir::Graph& graph, bool all);
// One object per parameter that the graph uses or that differs between runs.
Json params_json(const ProgramSummary& program, const ir::Graph& graph);

// One line per event.
std::string event_text(const remote::CaptureEvent& event);
Json event_json(const remote::CaptureEvent& event);

}  // namespace torch_remote::tools
