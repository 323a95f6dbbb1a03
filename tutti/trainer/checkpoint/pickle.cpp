#include "tutti/trainer/checkpoint/pickle.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

using Kind = PickleValue::Kind;

struct StorageName {
  const char* name;
  at::ScalarType type;
};
constexpr std::array<StorageName, 10> kStorages{{{"FloatStorage", at::kFloat},
                                                 {"DoubleStorage", at::kDouble},
                                                 {"HalfStorage", at::kHalf},
                                                 {"BFloat16Storage", at::kBFloat16},
                                                 {"LongStorage", at::kLong},
                                                 {"IntStorage", at::kInt},
                                                 {"ShortStorage", at::kShort},
                                                 {"CharStorage", at::kChar},
                                                 {"ByteStorage", at::kByte},
                                                 {"BoolStorage", at::kBool}}};

PicklePtr make(Kind kind) {
  auto value = std::make_shared<PickleValue>();
  value->kind = kind;
  return value;
}
PicklePtr make_int(std::int64_t integer, Kind kind = Kind::kInt) {
  auto value = make(kind);
  value->integer = integer;
  return value;
}

class Machine {
 public:
  Machine(std::string_view bytes, const StorageLoader& load_storage, const std::string& where)
      : bytes_(bytes), load_storage_(load_storage), where_(where) {}

  PicklePtr run() {
    while (true) {
      const auto op = static_cast<unsigned char>(take(1)[0]);
      if (op == '.') return pop();
      execute(op);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("{}: {} (at byte {} of the pickle)", where_, why, position_),
                    "save the model's state_dict() with torch.save");
  }

  std::string_view take(std::size_t n) {
    if (n > bytes_.size() - position_) fail("truncated");
    const std::string_view part = bytes_.substr(position_, n);
    position_ += n;
    return part;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', position_);
    if (end == std::string_view::npos) fail("truncated");
    std::string text(bytes_.substr(position_, end - position_));
    position_ = end + 1;
    return text;
  }

  PicklePtr pop() {
    if (stack_.empty()) fail("not a pickle");
    PicklePtr value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.empty()) fail("not a pickle");
    return *stack_.back();
  }
  void push(PicklePtr value) { stack_.push_back(std::move(value)); }
  std::vector<PicklePtr> pop_to_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1]->kind != Kind::kMark) --mark;
    if (mark == 0) fail("not a pickle");
    std::vector<PicklePtr> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  void push_tuple(std::size_t n) {
    auto tuple = make(Kind::kTuple);
    tuple->items.resize(n);
    for (std::size_t i = n; i > 0; --i) tuple->items[i - 1] = pop();
    push(std::move(tuple));
  }
  void push_text(std::string_view text) {
    auto value = make(Kind::kText);
    value->text = text;
    push(std::move(value));
  }

  void set_items(const std::vector<PicklePtr>& pairs) {
    if (pairs.size() % 2 != 0) fail("not a pickle");
    PickleValue& dict = top();
    if (dict.kind != Kind::kDict) fail("sets items of something that is not a dict");
    for (std::size_t i = 0; i < pairs.size(); i += 2)
      dict.entries.emplace_back(pairs[i], pairs[i + 1]);
  }
  void append(const std::vector<PicklePtr>& items) {
    PickleValue& list = top();
    if (list.kind != Kind::kList) fail("appends to something that is not a list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }

  void execute(unsigned char op) {
    switch (op) {
      case 0x80:
        take(1);
        return;  // PROTO
      case 0x95:
        take(8);
        return;  // FRAME
      case '}':
        push(make(Kind::kDict));
        return;  // EMPTY_DICT
      case ']':
        push(make(Kind::kList));
        return;  // EMPTY_LIST
      case ')':
        push(make(Kind::kTuple));
        return;  // EMPTY_TUPLE
      case '(':
        push(make(Kind::kMark));
        return;  // MARK
      case 'N':
        push(make(Kind::kNone));
        return;  // NONE
      case 0x88:
        push(make_int(1, Kind::kBool));
        return;  // NEWTRUE
      case 0x89:
        push(make_int(0, Kind::kBool));
        return;  // NEWFALSE
      case 'J':
        push(make_int(number<std::int32_t>()));
        return;  // BININT
      case 'K':
        push(make_int(number<std::uint8_t>()));
        return;  // BININT1
      case 'M':
        push(make_int(number<std::uint16_t>()));
        return;  // BININT2
      case 0x8a:
        push(make_int(long1()));
        return;  // LONG1
      case 'G':
        push_float();
        return;  // BINFLOAT
      case 'X':
        push_text(take(number<std::uint32_t>()));
        return;  // BINUNICODE
      case 0x8c:
        push_text(take(number<std::uint8_t>()));
        return;  // SHORT_BINUNICODE
      case 'U':
        push_text(take(number<std::uint8_t>()));
        return;  // SHORT_BINSTRING
      case 'q':
        memo_[number<std::uint8_t>()] = shared_top();
        return;  // BINPUT
      case 'r':
        memo_[number<std::uint32_t>()] = shared_top();
        return;  // LONG_BINPUT
      case 0x94:
        memo_[static_cast<std::uint32_t>(memo_.size())] = shared_top();
        return;  // MEMOIZE
      case 'h':
        push(recall(number<std::uint8_t>()));
        return;  // BINGET
      case 'j':
        push(recall(number<std::uint32_t>()));
        return;  // LONG_BINGET
      case 0x85:
        push_tuple(1);
        return;  // TUPLE1
      case 0x86:
        push_tuple(2);
        return;  // TUPLE2
      case 0x87:
        push_tuple(3);
        return;    // TUPLE3
      case 't': {  // TUPLE
        auto tuple = make(Kind::kTuple);
        tuple->items = pop_to_mark();
        push(std::move(tuple));
        return;
      }
      case 'c': {  // GLOBAL
        auto global = make(Kind::kGlobal);
        global->text = line();
        global->text += " " + line();
        check_allowed(global->text);
        push(std::move(global));
        return;
      }
      case 0x93: {  // STACK_GLOBAL
        auto global = make(Kind::kGlobal);
        const PicklePtr name = pop();
        global->text = pop()->text + " " + name->text;
        check_allowed(global->text);
        push(std::move(global));
        return;
      }
      case 'Q':
        push(storage(*pop()));
        return;    // BINPERSID
      case 'R': {  // REDUCE
        const PicklePtr arguments = pop();
        const PicklePtr function = pop();
        push(reduce(*function, *arguments));
        return;
      }
      case 's': {  // SETITEM
        const PicklePtr value = pop();
        const PicklePtr key = pop();
        set_items({key, value});
        return;
      }
      case 'u':
        set_items_from_mark();
        return;  // SETITEMS
      case 'a':
        append({pop()});
        return;  // APPEND
      case 'e': {
        const auto items = pop_to_mark();
        append(items);
        return;
      }  // APPENDS
      case 'b':
        pop();
        return;  // BUILD: attributes such as _metadata are not weights
      case '0':
        pop();
        return;  // POP
      default:
        fail(fmt::format("pickle instruction 0x{:02x} is not one of weights", op));
    }
  }

  void set_items_from_mark() {
    const auto pairs = pop_to_mark();
    set_items(pairs);
  }
  PicklePtr shared_top() {
    top();
    return stack_.back();
  }
  PicklePtr recall(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("not a pickle");
    return found->second;
  }
  void push_float() {
    const std::string_view raw = take(8);
    std::uint64_t bits = 0;
    for (const char c : raw) bits = bits << 8 | static_cast<unsigned char>(c);
    auto value = make(Kind::kFloat);
    value->number = std::bit_cast<double>(bits);
    push(std::move(value));
  }
  std::int64_t long1() {
    const auto n = number<std::uint8_t>();
    const std::string_view raw = take(n);
    if (n > 8) return 0;  // larger than any size; not used by tensors
    std::uint64_t bits = n > 0 && (static_cast<unsigned char>(raw[n - 1u]) & 0x80) ? ~0ull : 0;
    for (std::size_t i = n; i > 0; --i) bits = bits << 8 | static_cast<unsigned char>(raw[i - 1]);
    return static_cast<std::int64_t>(bits);
  }

  static bool is_storage(const std::string& global, at::ScalarType* type = nullptr) {
    for (const auto& known : kStorages)
      if (global == std::string("torch ") + known.name) {
        if (type) *type = known.type;
        return true;
      }
    return false;
  }
  void check_allowed(const std::string& global) const {
    static const char* const kAllowed[] = {"collections OrderedDict",
                                           "torch._utils _rebuild_tensor_v2",
                                           "torch._utils _rebuild_parameter",
                                           "torch Size",
                                           "torch device",
                                           "torch.serialization _get_layout"};
    for (const char* allowed : kAllowed)
      if (global == allowed) return;
    if (!is_storage(global))
      fail(fmt::format("the file holds a '{}', which is not weights", global));
  }

  // ("storage", <type>, key, device, numel)
  PicklePtr storage(const PickleValue& id) {
    at::ScalarType type = at::kFloat;
    if (id.kind != Kind::kTuple || id.items.size() < 5 || id.items[0]->text != "storage" ||
        id.items[1]->kind != Kind::kGlobal || !is_storage(id.items[1]->text, &type) ||
        id.items[2]->kind != Kind::kText || id.items[4]->kind != Kind::kInt ||
        id.items[4]->integer < 0)
      fail("a storage is described in an unknown way");
    auto value = make(Kind::kStorage);
    value->tensor = load_storage_(id.items[2]->text, type, id.items[4]->integer);
    return value;
  }

  std::vector<std::int64_t> sizes(const PickleValue& tuple) const {
    std::vector<std::int64_t> out;
    for (const PicklePtr& item : tuple.items) {
      if (item->kind != Kind::kInt || item->integer < 0) fail("a tensor's shape is not numbers");
      out.push_back(item->integer);
    }
    return out;
  }

  PicklePtr reduce(const PickleValue& function, const PickleValue& arguments) {
    if (function.kind != Kind::kGlobal || arguments.kind != Kind::kTuple) fail("not a pickle");
    const auto& items = arguments.items;
    if (function.text == "collections OrderedDict") {
      auto dict = make(Kind::kDict);
      if (!items.empty())
        for (const PicklePtr& pair : items[0]->items) {
          if (pair->items.size() != 2) fail("not a pickle");
          dict->entries.emplace_back(pair->items[0], pair->items[1]);
        }
      return dict;
    }
    if (function.text == "torch._utils _rebuild_tensor_v2") return tensor(items);
    if (function.text == "torch._utils _rebuild_parameter" && !items.empty()) return items[0];
    if (function.text == "torch Size" && items.size() == 1) return items[0];
    return make(Kind::kNone);  // a device or layout beside the weights
  }

  PicklePtr tensor(const std::vector<PicklePtr>& items) {
    if (items.size() < 4 || items[0]->kind != Kind::kStorage || items[1]->kind != Kind::kInt)
      fail("a tensor is described in an unknown way");
    const at::Tensor& flat = items[0]->tensor;
    const std::int64_t offset = items[1]->integer;
    const auto shape = sizes(*items[2]);
    const auto stride = sizes(*items[3]);
    if (shape.size() != stride.size() || offset < 0)
      fail("a tensor is described in an unknown way");
    const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    // The last element it touches must be inside the storage; checked without overflow.
    const auto numel = static_cast<std::uint64_t>(flat.numel());
    auto last = static_cast<std::uint64_t>(offset);
    for (std::size_t i = 0; i < shape.size() && !empty; ++i) {
      const auto steps = static_cast<std::uint64_t>(shape[i] - 1);
      if (steps > 0 && static_cast<std::uint64_t>(stride[i]) > numel / steps)
        fail("a tensor is larger than its storage");
      last += steps * static_cast<std::uint64_t>(stride[i]);
    }
    if (!empty && last >= numel) fail("a tensor is larger than its storage");
    auto value = make(Kind::kTensor);
    value->tensor =
        empty ? at::empty(shape, flat.options()) : flat.as_strided(shape, stride, offset);
    return value;
  }

  std::string_view bytes_;
  const StorageLoader& load_storage_;
  const std::string& where_;
  std::size_t position_ = 0;
  std::vector<PicklePtr> stack_;
  std::map<std::uint32_t, PicklePtr> memo_;
};

class PickleWriter {
 public:
  std::string take() { return std::move(out_); }
  void op(unsigned char code) { out_.push_back(static_cast<char>(code)); }
  void global(const std::string& module, const std::string& name) {
    out_ += 'c' + module + '\n' + name + '\n';
  }
  void text(const std::string& value) {
    op('X');
    raw(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void integer(std::int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      op('J');
      raw(static_cast<std::int32_t>(value));
    } else {
      op(0x8a);
      op(8);
      raw(value);
    }
  }
  void tuple(c10::IntArrayRef values) {
    op('(');
    for (const auto value : values) integer(value);
    op('t');
  }

 private:
  template <class T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  std::string out_;
};

}  // namespace

PicklePtr unpickle(std::string_view bytes, const StorageLoader& load_storage,
                   const std::string& where) {
  return Machine(bytes, load_storage, where).run();
}

std::string pickle_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  PickleWriter w;
  const auto ordered_dict = [&w] {
    w.global("collections", "OrderedDict");
    w.op(')');
    w.op('R');
  };
  w.op(0x80);
  w.op(2);
  ordered_dict();
  w.op('(');
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].second;
    const char* storage = nullptr;
    for (const auto& known : kStorages)
      if (known.type == tensor.scalar_type()) storage = known.name;
    if (!storage)
      throw DataError(fmt::format("'{}': .pth cannot hold type {}", tensors[i].first,
                                  c10::toString(tensor.scalar_type())));
    w.text(tensors[i].first);
    w.global("torch._utils", "_rebuild_tensor_v2");
    w.op('(');
    w.op('(');
    w.text("storage");
    w.global("torch", storage);
    w.text(std::to_string(i));
    w.text("cpu");
    w.integer(tensor.numel());
    w.op('t');
    w.op('Q');
    w.integer(0);
    w.tuple(tensor.sizes());
    w.tuple(tensor.contiguous().strides());
    w.op(0x89);
    ordered_dict();
    w.op('t');
    w.op('R');
  }
  w.op('u');
  w.op('.');
  return w.take();
}

}  // namespace tutti::trainer
