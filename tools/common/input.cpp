#include "tools/common/input.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>

namespace torch_remote::tools {
namespace {

constexpr std::string_view kCaptureMagic = "TRREPLAY";
constexpr std::string_view kProgramMagic = "TRPR";
constexpr size_t kProgramMagicAt = 4;  // a flatbuffer's file identifier follows the offset of its root
constexpr size_t kShownColumns = 100;  // characters shown on each side of the position that a message points at

struct Close {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

std::string without_prefix(const std::string& message) {
  constexpr std::string_view kPrefix = "remote: ";
  return message.starts_with(kPrefix) ? message.substr(kPrefix.size()) : message;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t'; }

// Used for files that have the magic of neither a program nor a capture: they are text, or damaged.
bool looks_like_text(std::string_view bytes) {
  const std::string_view head = bytes.substr(0, 256);
  return std::ranges::none_of(head, [](char c) { return is_control(c) && c != '\n' && c != '\r'; });
}

std::string_view line_of(std::string_view text, size_t number) {
  for (; number > 1; --number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

// Returns "name:line:column: what", the line, and a mark below the column. A long line is cut.
Status point_at(const Input& input, size_t line, size_t column, const std::string& what) {
  std::string_view text = line_of(input.bytes, line);
  size_t at = std::min(column - 1, text.size());
  if (at > kShownColumns) {
    text.remove_prefix(at - kShownColumns);
    at = kShownColumns;
  }
  std::string shown(text.substr(0, at + kShownColumns));
  std::ranges::replace_if(shown, is_control, ' ');
  std::string mark = shown.substr(0, at);
  std::ranges::replace_if(mark, [](char c) { return c != '\t'; }, ' ');
  return Status::invalid(input.name + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + what + "\n" +
                         shown + "\n" + mark + "^");
}

// Parses a number at the front and removes it.
bool take_number(std::string_view* text, size_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

// Converts a message of the parser, "line:column: what".
Status parse_error(const Input& input, const std::string& message) {
  std::string_view rest = message;
  size_t line = 1;
  size_t column = 1;
  const bool located = take_number(&rest, &line) && rest.starts_with(':');
  if (located) rest.remove_prefix(1);
  if (!located || !take_number(&rest, &column) || !rest.starts_with(": ")) {
    return Status::invalid(input.name + ": " + message);
  }
  return point_at(input, line, column, std::string(rest.substr(2)));
}

// Converts a message of the verifier, which names a node, a view or a buffer by its number: points at its declaration.
Status verify_error(const Input& input, const std::string& message, const ir::TextLines& lines) {
  const struct {
    std::string_view mark;
    const std::vector<uint32_t>& lines;
  } kinds[] = {{"node ", lines.nodes}, {"view %", lines.views}, {"buffer b", lines.buffers}};
  for (const auto& kind : kinds) {
    const size_t found = message.find(kind.mark);
    if (found == std::string::npos) continue;
    std::string_view rest = std::string_view(message).substr(found + kind.mark.size());
    size_t number = 0;
    if (!take_number(&rest, &number) || number >= kind.lines.size()) continue;
    const std::string_view line = line_of(input.bytes, kind.lines[number]);
    const size_t blanks = std::min(line.find_first_not_of(" \t"), line.size());
    return point_at(input, kind.lines[number], blanks + 1, message);
  }
  return Status::invalid(input.name + ": " + message);
}

Status load_from_capture(const Input& input, const GraphSelection& choice, ir::Graph* graph) {
  std::unique_ptr<remote::CaptureReader> reader;
  remote::CapturedProgramPtr program;
  if (Status status = open_capture(input, &reader); !status.ok()) return status;
  if (Status status = find_program(input, *reader, choice, &program); !status.ok()) return status;
  return graph_of(input, *program, choice.before_passes, graph);
}

}  // namespace

Status read_input(const std::string& path, Input* input) {
  const bool standard = path.empty() || path == "-";
  input->name = standard ? "<stdin>" : path;
  input->is_file = !standard;
  input->bytes.clear();
  const std::unique_ptr<std::FILE, Close> file(standard ? stdin : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return Status::invalid("cannot open " + path + ": " + std::strerror(errno));
  std::string piece(1 << 16, '\0');
  while (std::feof(file.get()) == 0 && std::ferror(file.get()) == 0) {
    const size_t size = std::fread(piece.data(), 1, piece.size(), file.get());
    input->bytes.append(piece, 0, size);
    if (!standard && input->bytes.starts_with(kCaptureMagic)) break;
  }
  if (std::ferror(file.get()) != 0) return Status::invalid("cannot read " + input->name + ": " + std::strerror(errno));
  const std::string_view bytes = input->bytes;
  if (bytes.empty()) return Status::invalid(input->name + " is empty");
  if (bytes.starts_with(kCaptureMagic)) {
    input->format = Format::kCapture;
  } else if (bytes.size() >= 8 && bytes.substr(kProgramMagicAt, kProgramMagic.size()) == kProgramMagic) {
    input->format = Format::kProgram;
  } else if (looks_like_text(bytes)) {
    input->format = Format::kText;
  } else {
    return Status::invalid(input->name + ": neither the text of a graph, nor a program, nor a capture (.rreplay)");
  }
  return {};
}

std::string number_list(const std::vector<uint32_t>& numbers) {
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  if (numbers.size() > kShown) text += " and " + std::to_string(numbers.size() - kShown) + " more";
  return text;
}

Status with_input_name(const Input& input, const Status& status) {
  return {status.code(), input.name + ": " + without_prefix(status.message())};
}

Status load_graph(const Input& input, const GraphSelection& choice, ir::Graph* graph) {
  if (input.format == Format::kCapture) return load_from_capture(input, choice, graph);
  if (choice.before_passes) {
    return Status::invalid(input.name + ": only a capture has the graphs before the passes; this is one graph");
  }
  if (input.format == Format::kText) {
    ir::TextLines lines;
    if (const Status status = ir::parse_graph(input.bytes, graph, &lines); !status.ok()) {
      return parse_error(input, status.message());
    }
    const Status status = ir::verify(*graph);
    return status.ok() ? status : verify_error(input, without_prefix(status.message()), lines);
  }
  const auto* data = reinterpret_cast<const uint8_t*>(input.bytes.data());
  const Status status = ir::decode_program(data, input.bytes.size(), graph);
  return status.ok() ? status : with_input_name(input, status);
}

Status open_capture(const Input& input, std::unique_ptr<remote::CaptureReader>* reader) {
  Status status;
  if (input.is_file) {
    status = remote::CaptureReader::open(input.name, reader);
  } else {
    const auto* data = reinterpret_cast<const std::byte*>(input.bytes.data());
    status = remote::CaptureReader::parse({data, data + input.bytes.size()}, reader);
  }
  return status.ok() ? status : with_input_name(input, status);
}

Status graph_of(const Input& input, const remote::CapturedProgram& program, bool before_passes, ir::Graph* graph) {
  const std::optional<ir::Graph>& source = program.source;
  if (!before_passes) {
    *graph = program.graph;
  } else if (source.has_value()) {
    *graph = *source;
  } else {
    return Status::invalid(input.name + ": does not have the graph of program " + std::to_string(program.number) +
                           " before the passes");
  }
  return {};
}

Status next_program(const Input& input, remote::CaptureReader& reader, remote::CapturedProgramPtr* program) {
  std::optional<remote::CaptureEvent> event;
  program->reset();
  do {
    if (Status status = reader.next(&event); !status.ok()) return with_input_name(input, status);
    if (!event.has_value()) return {};
    if (const auto* found = std::get_if<remote::ProgramEvent>(&event->what)) *program = found->program;
  } while (*program == nullptr);
  return {};
}

Status find_program(const Input& input, remote::CaptureReader& reader, const GraphSelection& choice,
                    remote::CapturedProgramPtr* program) {
  remote::CapturedProgramPtr found, next;
  std::vector<uint32_t> numbers;
  do {
    if (Status status = next_program(input, reader, &next); !status.ok()) return status;
    if (next == nullptr) break;
    numbers.push_back(next->number);
    if (choice.program == 0 || next->number == choice.program) found = next;
  } while (choice.program == 0 || found == nullptr);
  if (found == nullptr && choice.program != 0) {
    return Status::invalid(input.name + ": has no program " + std::to_string(choice.program) + "; it has " +
                           (numbers.empty() ? "none" : number_list(numbers)));
  }
  if (numbers.size() != 1 && choice.program == 0) {
    return Status::invalid(input.name + ": has " + std::to_string(numbers.size()) + " programs" +
                           (numbers.empty() ? "" : "; choose one with --program: " + number_list(numbers)));
  }
  *program = std::move(found);
  return {};
}

}  // namespace torch_remote::tools
