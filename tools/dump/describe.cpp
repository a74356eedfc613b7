#include "tools/dump/describe.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <optional>
#include <variant>

#include "tools/dump/param_uses.h"

namespace torch_remote::tools {
namespace {

const char* ending_text(remote::CaptureEnding ending) {
  switch (ending) {
    case remote::CaptureEnding::kComplete:
      return "complete";
    case remote::CaptureEnding::kLimit:
      return "ended at its limit of bytes";
    case remote::CaptureEnding::kCutOff:
      return "cut off: the process died or is still running";
  }
  return "";
}

// For example "2026-11-21 18:22:03 UTC".
std::string date_text(int64_t nanoseconds) {
  const auto seconds = static_cast<std::time_t>(nanoseconds / 1'000'000'000);
  std::tm date{};
  char text[40] = "";
  if (gmtime_r(&seconds, &date) != nullptr) std::strftime(text, sizeof(text), "%F %T UTC", &date);
  return text;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  auto amount = static_cast<double>(bytes);
  size_t unit = 0;
  for (; amount >= 1000 && unit + 1 < std::size(kUnits); ++unit) amount /= 1000;
  char text[40];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", amount, kUnits[unit]);
  return text;
}

std::string counted(uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// The first line of a message.
std::string one_line(const std::string& text) { return text.substr(0, text.find('\n')); }

const ParamUse kNotUsed = {.what = "not used"};

// For example "32 in 18 runs, 17 in 1 run"; shows only the first values.
std::string values_text(const ParamUse& use, const ParamValues& values) {
  constexpr size_t kShown = 4;
  std::string out;
  uint64_t others = values.others;
  for (size_t i = 0; i < values.counts.size(); ++i) {
    const auto& [value, runs] = values.counts[i];
    if (i >= kShown) {
      others += runs;
      continue;
    }
    if (i > 0) out += ", ";
    out += param_text(use, value);
    if (values.counts.size() > 1) out += " in " + counted(runs, "run");
  }
  return others == 0 ? out : out + ", others in " + counted(others, "run");
}

Json param_value(const ParamUse& use, int64_t word) {
  if (!use.is_double) return word;
  const std::string text = param_text(use, word);
  const Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : Json(text);  // infinities and NaNs become strings
}

Json error_json(const std::optional<remote::CapturedError>& error) {
  if (!error.has_value()) return nullptr;
  return {{"exception_type", error->status.exception_type()},
          {"message", error->status.message()},
          {"program", error->program},
          {"record", error->record},
          {"run", error->sequence}};
}

// For example "12, 13, 20..25".
std::string ids_text(std::span<const uint64_t> ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    if (!out.empty()) out += ", ";
    out += std::to_string(ids[i]);
    if (end - i > 1) out += (end - i == 2 ? ", " : "..") + std::to_string(ids[end - 1]);
    i = end;
  }
  return out;
}

std::string list_text(std::span<const int64_t> values) {
  std::string out;
  for (const int64_t value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
  return "[" + out + "]";
}

// Describes an event, by its type.
struct EventText {
  std::string operator()(const remote::ProgramEvent& event) const {
    return "program " + std::to_string(event.program->number) + ": " +
           counted(event.program->graph.nodes.size(), "op") + ", " + bytes_text(event.program->encoded.size());
  }
  std::string operator()(const remote::RunEvent& event) const {
    std::string out = "run of program " + std::to_string(event.program->number) + ": inputs " + ids_text(event.inputs);
    const size_t made = event.program->survivors.size();
    if (made != 0) {
      out += "; makes " + std::to_string(event.first_result_id);
      if (made > 1) out += ".." + std::to_string(event.first_result_id + made - 1);
    }
    if (!event.freed_ids.empty()) out += "; frees " + ids_text(event.freed_ids);
    if (event.wants_reply) out += event.has_reply ? "; answer " + list_text(event.result_words) : "; no answer";
    return out + failure(event.error);
  }
  std::string operator()(const remote::UploadEvent& event) const {
    return "upload: buffer " + std::to_string(event.buffer) + ", " + bytes_text(event.bytes.size());
  }
  std::string operator()(const remote::ReadEvent& event) const {
    return "read: buffer " + std::to_string(event.buffer) + ", sizes " + list_text(event.sizes) + " of " +
           std::to_string(event.item_size) + " bytes" + (event.has_reply ? "" : "; no answer") + failure(event.error);
  }
  std::string operator()(const remote::FreeEvent& event) const { return "free: " + ids_text(event.buffers); }
  std::string operator()(const remote::SynchronizeEvent& event) const {
    return std::string("synchronize") + (event.has_reply ? "" : "; no answer") + failure(event.error);
  }
  std::string operator()(const remote::ErrorEvent& event) const { return "the worker reports" + failure(event.error); }

  static std::string failure(const std::optional<remote::CapturedError>& error) {
    if (!error.has_value()) return "";
    std::string out = "; error";
    if (error->program != 0) out += " of program " + std::to_string(error->program);
    if (error->sequence != 0) out += ", message " + std::to_string(error->sequence);
    return out + ": " + error->status.exception_type() + " " + one_line(error->status.message());
  }
};

struct EventJson {
  Json operator()(const remote::ProgramEvent& event) const {
    return {{"event", "program"}, {"program", event.program->number}, {"bytes", event.program->encoded.size()}};
  }
  Json operator()(const remote::RunEvent& event) const {
    return {{"event", "run"},
            {"program", event.program->number},
            {"params", event.params},
            {"inputs", event.inputs},
            {"first_result_id", event.first_result_id},
            {"made", event.program->survivors.size()},
            {"freed_ids", event.freed_ids},
            {"wants_reply", event.wants_reply},
            {"answered", event.has_reply},
            {"result_words", event.result_words},
            {"error", error_json(event.error)}};
  }
  Json operator()(const remote::UploadEvent& event) const {
    return {{"event", "upload"}, {"buffer", event.buffer}, {"bytes", event.bytes.size()}};
  }
  Json operator()(const remote::ReadEvent& event) const {
    return {{"event", "read"},
            {"buffer", event.buffer},
            {"item_size", event.item_size},
            {"shape", event.sizes},
            {"strides", event.strides},
            {"offset", event.offset},
            {"answered", event.has_reply},
            {"error", error_json(event.error)}};
  }
  Json operator()(const remote::FreeEvent& event) const { return {{"event", "free"}, {"buffers", event.buffers}}; }
  Json operator()(const remote::SynchronizeEvent& event) const {
    return {{"event", "synchronize"}, {"answered", event.has_reply}, {"error", error_json(event.error)}};
  }
  Json operator()(const remote::ErrorEvent& event) const {
    return {{"event", "error"}, {"error", error_json(event.error)}};
  }
};

}  // namespace

std::string graph_text(const ir::Graph& graph, std::span<const std::string> remarks) {
  const std::string head = "// " + counted(graph.nodes.size(), "op") + ", " + counted(graph.buffers.size(), "buffer") +
                           ", " + counted(graph.params, "parameter") + "\n";
  const std::string text = ir::print(graph);
  ir::Graph same;
  ir::TextLines lines;
  if (remarks.empty() || !ir::parse_graph(text, &same, &lines).ok()) return head + text;
  std::string out = head;
  size_t begin = 0;
  size_t node = 0;
  for (uint32_t line = 1; begin < text.size(); ++line) {
    const size_t end = text.find('\n', begin);
    out.append(text, begin, end - begin);
    if (node < lines.nodes.size() && lines.nodes[node] == line) {
      if (!remarks[node].empty()) out += "  // " + remarks[node];
      ++node;
    }
    out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string capture_text(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary) {
  const remote::CaptureInfo& info = reader.info();
  std::string out = name + ": " + ending_text(reader.ending()) + "; " + bytes_text(reader.size()) + ", " +
                    date_text(info.time) + ", process " + std::to_string(info.process);
  if (!info.torch_version.empty()) out += ", torch " + info.torch_version;
  out += "\n" + counted(summary.programs.size(), "program") + ", " + counted(summary.runs, "run") + "; " +
         counted(summary.uploads, "upload") + " (" + bytes_text(summary.uploaded_bytes) + "), " +
         counted(summary.reads, "read") + " (" + bytes_text(summary.read_bytes) + "), " +
         counted(summary.errors, "error") + "\n";
  if (summary.programs.empty()) return out;
  out += "\n";
  char line[160];
  std::snprintf(line, sizeof(line), "%8s %6s %8s %11s %8s %7s\n", "program", "ops", "buffers", "parameters", "differ",
                "runs");
  out += line;
  for (const ProgramSummary& program : summary.programs) {
    const ir::Graph& graph = program.program->graph;
    std::snprintf(line, sizeof(line), "%8u %6zu %8zu %11u %8zu %7llu%s\n", program.program->number, graph.nodes.size(),
                  graph.buffers.size(), graph.params, program.changed.size(),
                  static_cast<unsigned long long>(program.runs), program.errors == 0 ? "" : "  failed");
    out += line;
  }
  return out;
}

Json capture_json(const std::string& name, const remote::CaptureReader& reader, const CaptureSummary& summary) {
  const remote::CaptureInfo& info = reader.info();
  Json out{{"schema", kCaptureSchema},
           {"file", name},
           {"bytes", reader.size()},
           {"ending", reader.ending() == remote::CaptureEnding::kComplete ? "complete"
                      : reader.ending() == remote::CaptureEnding::kLimit  ? "limit"
                                                                          : "cut off"},
           {"time_ns", info.time},
           {"process", info.process},
           {"torch_version", info.torch_version},
           {"runs", summary.runs},
           {"uploads", summary.uploads},
           {"uploaded_bytes", summary.uploaded_bytes},
           {"reads", summary.reads},
           {"read_bytes", summary.read_bytes},
           {"errors", summary.errors}};
  out["programs"] = Json::array();
  for (const ProgramSummary& program : summary.programs) {
    const ir::Graph& graph = program.program->graph;
    out["programs"].push_back({{"program", program.program->number},
                               {"ops", graph.nodes.size()},
                               {"buffers", graph.buffers.size()},
                               {"params", graph.params},
                               {"params_that_differ", program.changed.size()},
                               {"runs", program.runs},
                               {"errors", program.errors}});
  }
  return out;
}

std::string params_text(const ProgramSummary& program, const ir::Graph& graph, bool all) {
  std::string out = "// program " + std::to_string(program.program->number) + ": " + counted(program.runs, "run") +
                    ", " + counted(program.changed.size(), "parameter") + " with different values\n";
  const ParamUses uses = param_uses(graph);
  // For example " (size 0 of %3): 32 in 2 runs, 17 in 1 run"; empty for a parameter that is not shown.
  const auto describe = [&](uint32_t param) -> std::string {
    const auto use = uses.find(param);
    const bool shown = param < program.first.size() && (all || program.changed.contains(param));
    if (!shown || (use == uses.end() && !program.changed.contains(param))) return {};
    const ParamUse& known = use == uses.end() ? kNotUsed : use->second;
    return " (" + known.what + "): " + values_text(known, program.values(param)) + "\n";
  };
  for (uint32_t i = 0; i < program.first.size();) {
    const std::string what = describe(i);
    // Consecutive parameters with the same text get one line: an optimizer passes one number per tensor.
    uint32_t end = i + 1;
    while (!what.empty() && describe(end) == what) ++end;
    if (!what.empty())
      out += "//   s" + std::to_string(i) + (end - i > 1 ? "..s" + std::to_string(end - 1) : "") + what;
    i = end;
  }
  return out;
}

Json params_json(const ProgramSummary& program, const ir::Graph& graph) {
  Json out = Json::array();
  const ParamUses uses = param_uses(graph);
  for (uint32_t i = 0; i < graph.params; ++i) {
    const auto use = uses.find(i);
    if (use == uses.end() && !program.changed.contains(i)) continue;
    const ParamUse& known = use == uses.end() ? kNotUsed : use->second;
    const ParamValues values = program.values(i);
    Json param{{"name", "s" + std::to_string(i)}, {"use", known.what}, {"values", Json::array()}};
    for (const auto& [value, runs] : values.counts) {
      param["values"].push_back({{"value", param_value(known, value)}, {"runs", runs}});
    }
    param["runs_with_others"] = values.others;
    out.push_back(std::move(param));
  }
  return out;
}

std::string event_text(const remote::CaptureEvent& event) {
  char time[40];
  std::snprintf(time, sizeof(time), "%12.6f s", static_cast<double>(event.time) * 1e-9);
  return std::string(time) + "  message " + std::to_string(event.sequence) + "  " +
         std::visit(EventText(), event.what) + "\n";
}

Json event_json(const remote::CaptureEvent& event) {
  Json out{{"message", event.sequence}, {"time_ns", event.time}};
  out.update(std::visit(EventJson(), event.what));
  return out;
}

}  // namespace torch_remote::tools
