#pragma once

#include <string>

#include "ir/status.h"

namespace torch_remote::worker {

// One part of what a target needs: a driver, a library, a compiler.
struct ProbedPart {
  std::string name, path = {}, version = {};
  std::string missing = {};  // Why it cannot be used; empty: it can.
  std::string fix = {};      // States what to do if it is missing.
  std::string without = {};  // States what does not work without it.

  // Splits an error message at "; " into what is wrong and what to do.
  void set_missing(const Status& status);
};

// Appends "name   value", or for a part lines on what is missing, what to do, and what does not work.
void add_line(const std::string& name, const std::string& what, std::string* text);
void add_part(const ProbedPart& part, std::string* text);

// A JSON string, and a JSON object.
std::string json_text(const std::string& text);
std::string json_of(const ProbedPart& part);

}  // namespace torch_remote::worker
