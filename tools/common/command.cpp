#include "tools/common/command.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "ir/ops/op_table.h"

namespace torch_remote::tools {
namespace {

constexpr size_t kHelpWidth = 80;  // columns of a terminal
constexpr size_t kHelpColumn = 28;

// Wraps the descriptions of options to the width of a terminal.
class Help : public CLI::Formatter {
 public:
  Help() { column_width(kHelpColumn); }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = Formatter::make_option_desc(option);
    size_t begin = 0, blank = std::string::npos;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ') blank = i;
      if (i - begin < kHelpWidth - kHelpColumn || blank == std::string::npos) continue;
      text[blank] = '\n';
      begin = blank + 1;
      blank = std::string::npos;
    }
    return text;
  }
};

}  // namespace

bool parse_arguments(CLI::App& app, int argc, char** argv, int* exit) {
  app.set_version_flag("--version", app.get_name() + " of torch-remote, op table: " + ir::op_table_version());
  app.formatter(std::make_shared<Help>());
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    *exit = kExitOk;
    return false;
  } catch (const CLI::ParseError& error) {
    *exit = fail(app.get_name(), std::string(error.what()) + "; see " + app.get_name() + " --help");
    return false;
  }
  return true;
}

int fail(std::string_view tool, const std::string& message) {
  constexpr std::string_view kPrefix = "remote: ";
  const std::string_view text = message;
  const std::string line =
      std::string(tool) + ": " + std::string(text.starts_with(kPrefix) ? text.substr(kPrefix.size()) : text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return kExitBadInput;
}

int run_tool(std::string_view tool, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return fail(tool, error.what());
  }
}

Status write_output(const std::string& path, std::string_view bytes) {
  const bool standard = path.empty() || path == "-";
  std::signal(SIGPIPE, SIG_IGN);
  std::FILE* file = standard ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Status::invalid("cannot write " + path + ": " + std::strerror(errno));
  int error = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() ? 0 : errno;
  if ((standard ? std::fflush(file) : std::fclose(file)) != 0 && error == 0) error = errno;
  if (error == 0 || (standard && error == EPIPE)) return {};
  return Status::invalid("cannot write " + (standard ? "the standard output" : path) + ": " + std::strerror(error));
}

}  // namespace torch_remote::tools
