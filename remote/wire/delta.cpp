#include "remote/wire/delta.h"

#include <algorithm>
#include <array>
#include <cstring>

// The new value of one parameter is encoded as
//
//   value := varint(zigzag(now - last) << 1)   if that takes at most 8 bytes
//          | varint(3 + 2 * age)               if this message already gave this word to another parameter and it is
//                                              among the last 8 such words that took 3 bytes or more; age 0 is the
//                                              newest. Step sizes and learning rates repeat per tensor.
//          | 1 bits                            otherwise; bits: the new word, 8 bytes, little endian
//
// The id of one binding is encoded as
//
//   id := 0                                    this binding switches to the other rule, which yields the id
//       | varint(1 + zigzag(id - previous))    previous: the last id encoded this way; initially `first_result_id`
//
// At first both ends have zeros and the rule "same id as in the last run".
namespace torch_remote::remote {
namespace {

constexpr uint64_t kMaxDifference = uint64_t{1} << 55;  // encodes to 8 bytes of LEB128 with the tag bit

constexpr uint64_t kSmallDifference = uint64_t{1} << 13;  // encodes to 2 bytes of LEB128 with the tag bit

uint64_t zigzag(uint64_t difference) { return difference << 1 ^ (0 - (difference >> 63)); }
uint64_t unzigzag(uint64_t v) { return v >> 1 ^ (0 - (v & 1)); }

void put_varint(uint64_t v, std::vector<uint8_t>& out) {
  for (; v >= 0x80; v >>= 7) out.push_back(static_cast<uint8_t>(v) | 0x80);
  out.push_back(static_cast<uint8_t>(v));
}

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : p_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool at_end() const { return p_ == end_; }

  bool varint(uint64_t* v) {
    *v = 0;
    for (int shift = 0; shift < 64 && p_ < end_; shift += 7) {
      const uint64_t byte = *p_++;
      if (shift == 63 && byte > 1) return false;  // more than 64 bits
      *v |= (byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool word(uint64_t* v) {
    if (end_ - p_ < 8) return false;
    *v = 0;
    for (int i = 0; i < 8; ++i) *v |= uint64_t{*p_++} << (8 * i);
    return true;
  }

 private:
  const uint8_t* p_;
  const uint8_t* end_;
};

// The last words that this message encoded in 3 bytes or more.
class Recent {
 public:
  static constexpr size_t kCount = 8;

  void add(uint64_t word) { words_[next_++ % kCount] = word; }
  // Returns kCount if the word is not stored.
  size_t age(uint64_t word) const {
    for (size_t age = 0; age < std::min(next_, kCount); ++age) {
      if (words_[(next_ - 1 - age) % kCount] == word) return age;
    }
    return kCount;
  }
  bool get(uint64_t age, uint64_t* word) const {
    if (age >= std::min(next_, kCount)) return false;
    *word = words_[(next_ - 1 - age) % kCount];
    return true;
  }

 private:
  std::array<uint64_t, kCount> words_;
  size_t next_ = 0;
};

// Index of the first difference at or after `i`, or n. Most parameters do not change between steps, so memcmp compares
// whole blocks first.
size_t skip_equal(const int64_t* a, const int64_t* b, size_t i, size_t n) {
  constexpr size_t kBlock = 64;
  while (i + kBlock <= n && std::memcmp(a + i, b + i, kBlock * sizeof(int64_t)) == 0) i += kBlock;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

Status damaged(const char* what) {
  return Status::invalid(std::string("remote: damaged ") + what +
                         " in a run message; the two ends disagree about the program's last run");
}

uint64_t id_by_rule(const Bindings& last, size_t i, uint64_t first_result_id, bool relative) {
  return relative ? first_result_id - (last.first_result_id - last.ids[i]) : last.ids[i];
}

}  // namespace

void encode_params(std::span<const int64_t> now, std::vector<int64_t>& last, std::vector<uint8_t>& out) {
  const size_t n = now.size();
  if (last.size() != n) last.assign(n, 0);
  Recent recent;
  size_t done = 0;
  for (size_t begin = skip_equal(now.data(), last.data(), 0, n); begin < n;) {
    size_t end = begin + 1;
    while (end < n && now[end] != last[end]) ++end;
    put_varint(begin - done, out);
    put_varint(end - begin, out);
    for (size_t i = begin; i < end; ++i) {
      const auto word = static_cast<uint64_t>(now[i]);
      const uint64_t difference = zigzag(word - static_cast<uint64_t>(last[i]));
      if (difference < kSmallDifference) {
        put_varint(difference << 1, out);
      } else if (const size_t age = recent.age(word); age < Recent::kCount) {
        put_varint(3 + 2 * age, out);
      } else {
        recent.add(word);
        if (difference < kMaxDifference) {
          put_varint(difference << 1, out);
        } else {
          out.push_back(1);
          for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<uint8_t>(word >> (8 * byte)));
        }
      }
      last[i] = now[i];
    }
    done = end;
    begin = skip_equal(now.data(), last.data(), end, n);
  }
}

Status decode_params(std::span<const uint8_t> bytes, std::vector<int64_t>& last, bool* changed) {
  Reader reader(bytes);
  Recent recent;
  uint64_t i = 0;
  *changed = !reader.at_end();
  while (!reader.at_end()) {
    uint64_t skip, count;
    if (!reader.varint(&skip) || !reader.varint(&count)) return damaged("parameters");
    if (skip > last.size() - i || count > last.size() - i - skip) return damaged("parameters");
    i += skip;
    for (const uint64_t end = i + count; i < end; ++i) {
      uint64_t value;
      if (!reader.varint(&value)) return damaged("parameters");
      if (value % 2 == 0) {
        const bool small = value >> 1 < kSmallDifference;
        value = static_cast<uint64_t>(last[i]) + unzigzag(value >> 1);
        if (!small) recent.add(value);
      } else if (value == 1) {
        if (!reader.word(&value)) return damaged("parameters");
        recent.add(value);
      } else if (!recent.get((value - 3) / 2, &value)) {
        return damaged("parameters");
      }
      last[i] = static_cast<int64_t>(value);
    }
  }
  return {};
}

void encode_bindings(std::span<const uint64_t> now, uint64_t first_result_id, Bindings& last,
                     std::vector<uint8_t>& out) {
  const size_t n = now.size();
  if (last.ids.size() != n) {
    last.ids.assign(n, 0);
    last.relative.assign(n, false);
    last.first_result_id = 0;
  }
  uint64_t previous = first_result_id;
  size_t done = 0;
  auto follows_rule = [&](size_t i) { return now[i] == id_by_rule(last, i, first_result_id, last.relative[i]); };
  for (size_t begin = 0; begin < n;) {
    if (follows_rule(begin)) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < n && !follows_rule(end)) ++end;
    put_varint(begin - done, out);
    put_varint(end - begin, out);
    for (size_t i = begin; i < end; ++i) {
      if (now[i] == id_by_rule(last, i, first_result_id, !last.relative[i])) {
        last.relative[i] = !last.relative[i];
        out.push_back(0);
      } else {
        // 1 + zigzag wraps to 0 only for a difference of -2^63. Ids count from 1, so no difference gets that large.
        put_varint(1 + zigzag(now[i] - previous), out);
        previous = now[i];
      }
    }
    done = begin = end;
  }
  std::copy(now.begin(), now.end(), last.ids.begin());
  last.first_result_id = first_result_id;
}

Status decode_bindings(std::span<const uint8_t> bytes, uint64_t first_result_id, Bindings& last) {
  last.relative.resize(last.ids.size(), false);
  Reader reader(bytes);
  uint64_t previous = first_result_id;
  size_t i = 0;
  const auto apply_rule_until = [&](size_t end) {
    for (; i < end; ++i) last.ids[i] = id_by_rule(last, i, first_result_id, last.relative[i]);
  };
  while (!reader.at_end()) {
    uint64_t skip, count;
    if (!reader.varint(&skip) || !reader.varint(&count)) return damaged("bindings");
    if (skip > last.ids.size() - i || count > last.ids.size() - i - skip) return damaged("bindings");
    apply_rule_until(i + skip);
    for (const size_t end = i + count; i < end; ++i) {
      uint64_t value;
      if (!reader.varint(&value)) return damaged("bindings");
      if (value == 0) {
        last.relative[i] = !last.relative[i];
        last.ids[i] = id_by_rule(last, i, first_result_id, last.relative[i]);
      } else {
        last.ids[i] = previous += unzigzag(value - 1);
      }
    }
  }
  apply_rule_until(last.ids.size());
  last.first_result_id = first_result_id;
  return {};
}

void encode_freed_ids(std::vector<uint64_t>& ids, std::vector<uint8_t>& out) {
  std::sort(ids.begin(), ids.end());
  uint64_t previous = 0;
  for (uint64_t id : ids) {
    put_varint(id - previous, out);
    previous = id;
  }
}

Status decode_freed_ids(std::span<const uint8_t> bytes, std::vector<uint64_t>* ids) {
  Reader reader(bytes);
  uint64_t id = 0;
  while (!reader.at_end()) {
    uint64_t difference;
    // A difference of 0 would be a double free or the id 0, which no buffer has.
    if (!reader.varint(&difference) || difference == 0 || id + difference < id)
      return damaged("list of buffers to free");
    ids->push_back(id += difference);
  }
  return {};
}

}  // namespace torch_remote::remote
