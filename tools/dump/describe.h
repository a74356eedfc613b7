#pragma once

#include <span>
#include <string>

#include "remote/capture/capture.h"
#include "tools/common/graph_json.h"
#include "tools/dump/capture_summary.h"

// The texts and JSON objects of remote-dump; docs/tools.md describes the JSON.
namespace torch_remote::tools {

inline constexpr const char* kCaptureSchema = "torch-remote.capture/1";

// A graph with a comment above it: how many ops, buffers and parameters. remote-opt reads it. `remarks`: of each op, in
// a comment behind it; or none.
std::string graph_text(const ir::Graph& graph, std::span<const std::string> remarks);

std::string capture_text(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary);
Json capture_json(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary);

// Comments: a program's runs, and its parameters: those that differ between the runs, or all that the graph uses.
std::string params_text(const ProgramSummary& program, const ir::Graph& graph, bool all);
// One object a parameter that the graph uses, or that differs between the runs.
Json params_json(const ProgramSummary& program, const ir::Graph& graph);

// One line an event.
std::string event_text(const remote::CaptureEvent& event);
Json event_json(const remote::CaptureEvent& event);

}  // namespace torch_remote::tools
