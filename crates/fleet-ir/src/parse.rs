//! The reader of the text form of programs. [`crate::text`] describes the form.
//!
//! The first pass parses the text and creates blocks and variables. The second pass builds ops, so
//! that an op may precede the block that it owns. An error gives line and column, the expected and
//! the actual token, and the nearest known name.
//!
//! The result is well formed: names resolve, slots and attributes fit the op's spec, and blocks are
//! a tree. [`Program::verify`] checks the rest, such as that a variable is written before it is
//! read.

use crate::lex::{Lexer, Position, Token, clipped};
use crate::limits::{
    BLOCK_DEPTH_MAX, BLOCKS_MAX, BlockOwners, OPS_MAX, SLOTS_MAX, check_bytes, check_count, depth,
};
use crate::names::NAME_BYTES_MAX;
use crate::text::{ROLES, VERSION, implied_stop_gradient};
use crate::{
    Attr, AttrKind, BlockId, Dialect, Division, Op, OpRole, Param, Program, Regularizer, Var,
    VarId, VarKind,
};
use fleet_base::{EntityRef, Error, Result, text};
use fleet_tensor::{DType, Layout, RANK_MAX, Shape};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

impl Program {
    /// Parses the text form. `dialect` provides the specs of ops.
    pub fn parse(text: &str, dialect: &dyn Dialect) -> Result<Program> {
        check_bytes(text.len())?;
        let mut parser = Parser::new(text, dialect)?;
        parser.header()?;
        while parser.token != Token::End {
            parser.block()?;
        }
        parser.resolve()
    }
}

/// An attribute value as written, before the spec determines its type.
enum Value<'t> {
    Number(&'t str),
    Ident(&'t str),
    Str(Cow<'t, str>),
    List(Vec<(Position, Value<'t>)>),
}

/// A named part of an op, with its position.
struct Part<'t, T> {
    at: Position,
    name: Cow<'t, str>,
    value: T,
}

/// Names of variables, with their positions.
type Names<'t> = Vec<(Position, Cow<'t, str>)>;

/// An op as written.
struct RawOp<'t> {
    at: Position,
    block: BlockId,
    name: Cow<'t, str>,
    inputs: Vec<Part<'t, Names<'t>>>,
    outputs: Vec<Part<'t, Names<'t>>>,
    attrs: Vec<Part<'t, Value<'t>>>,
    role: OpRole,
    device: Option<Arc<str>>,
    fp16_guard: bool,
    source: Option<Arc<str>>,
}

struct Parser<'t, 'd> {
    text: &'t str,
    lexer: Lexer<'t>,
    dialect: &'d dyn Dialect,
    at: Position,
    token: Token<'t>,
    program: Program,
    blocks_read: usize,
    ops: Vec<RawOp<'t>>,
    /// Labels repeat; each text is stored once.
    labels: HashMap<Cow<'t, str>, Arc<str>>,
}

impl<'t, 'd> Parser<'t, 'd> {
    fn new(text: &'t str, dialect: &'d dyn Dialect) -> Result<Parser<'t, 'd>> {
        let mut lexer = Lexer::new(text);
        let (at, token) = lexer.next()?;
        let (program, ops, labels) = (Program::new(), Vec::new(), HashMap::new());
        Ok(Parser { text, lexer, dialect, at, token, program, blocks_read: 0, ops, labels })
    }

    // Tokens

    fn advance(&mut self) -> Result<Token<'t>> {
        let (at, token) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn unexpected(&self, expected: impl fmt::Display) -> Error {
        self.at_position(
            self.at,
            Error::invalid("cannot parse the program").expected(expected).got(&self.token),
        )
    }

    fn at_position(&self, at: Position, error: Error) -> Error {
        error.at(at.describe(self.text))
    }

    fn check_count(&self, at: Position, what: &str, count: usize, limit: usize) -> Result<()> {
        check_count(what, count, limit).map_err(|error| self.at_position(at, error))
    }

    fn is_punct(&self, punct: char) -> bool {
        self.token == Token::Punct(punct)
    }

    fn expect_punct(&mut self, punct: char) -> Result<()> {
        if !self.is_punct(punct) {
            return Err(self.unexpected(format!("'{punct}'")));
        }
        self.advance().map(drop)
    }

    fn eat_punct(&mut self, punct: char) -> Result<bool> {
        let found = self.is_punct(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn keyword(&mut self, word: &str) -> Result<()> {
        if self.token != Token::Ident(word) {
            return Err(self.unexpected(format!("'{word}'")));
        }
        self.advance().map(drop)
    }

    fn unsigned(&mut self, what: &str) -> Result<u64> {
        let Token::Number(number) = self.token else {
            return Err(self.unexpected(what));
        };
        let value = number.parse().map_err(|_| self.unexpected(what))?;
        self.advance()?;
        Ok(value)
    }

    fn float(&mut self, what: &str) -> Result<f64> {
        let value = match self.token {
            Token::Number(text) | Token::Ident(text) => float(text),
            _ => None,
        };
        let value = value.ok_or_else(|| self.unexpected(what))?;
        self.advance()?;
        Ok(value)
    }

    fn text(&mut self, what: &str) -> Result<Cow<'t, str>> {
        if !matches!(self.token, Token::Str(_)) {
            return Err(self.unexpected(what));
        }
        match self.advance()? {
            Token::Str(text) => Ok(text),
            _ => Ok(Cow::Borrowed("")),
        }
    }

    fn label(&mut self) -> Result<Arc<str>> {
        self.expect_punct('=')?;
        let text = self.text("a quoted label")?;
        Ok(self.labels.entry(text).or_insert_with_key(|text| Arc::from(&**text)).clone())
    }

    /// Reads the name of an op, slot or attribute.
    fn word(&mut self, what: &str) -> Result<Cow<'t, str>> {
        match &self.token {
            Token::Ident(word) => {
                let word = Cow::Borrowed(*word);
                self.advance()?;
                Ok(word)
            }
            Token::Str(text) if text.len() <= NAME_BYTES_MAX => self.text(what),
            _ => Err(self.unexpected(what)),
        }
    }

    // First pass

    fn header(&mut self) -> Result<()> {
        self.keyword("fleet")?;
        self.keyword("program")?;
        let at = self.at;
        let version = self.unsigned("the version of the format")?;
        if version != u64::from(VERSION) {
            let error = Error::unsupported("unsupported version of the text format")
                .expected(VERSION)
                .got(version);
            return Err(self.at_position(at, error));
        }
        if self.token == Token::Ident("seed") {
            self.advance()?;
            let seed = self.unsigned("a seed, 0 or more")?;
            self.program.set_seed(seed);
        }
        if self.token == Token::Ident("streams") {
            self.advance()?;
            let streams = self.unsigned("a number of streams, 0 or more")?;
            self.program.set_streams(streams);
        }
        if self.token == Token::End {
            return Err(self.unexpected("'block0'"));
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        let at = self.at;
        self.keyword(&format!("block{}", self.blocks_read))?;
        self.blocks_read += 1;
        self.check_count(at, "blocks", self.blocks_read, BLOCKS_MAX)?;
        let id = if self.blocks_read == 1 {
            Program::ROOT
        } else {
            self.keyword("in")?;
            let parent = match self.token {
                Token::Ident(word) => block_id(word).filter(|id| self.program.has_block(*id)),
                _ => None,
            };
            let parent = parent.ok_or_else(|| self.unexpected("an earlier block"))?;
            self.advance()?;
            if depth(&self.program, parent) >= BLOCK_DEPTH_MAX {
                let error = Error::invalid("blocks are nested too deeply")
                    .expected(format!("at most {BLOCK_DEPTH_MAX} levels"));
                return Err(self.at_position(at, error));
            }
            self.program.add_block(parent)
        };
        self.expect_punct('{')?;
        while !self.eat_punct('}')? {
            match self.token {
                Token::Var(_) => self.var(id)?,
                Token::Punct('(') => self.op(id)?,
                _ => return Err(self.unexpected("a variable, an op, or '}'")),
            }
        }
        Ok(())
    }

    fn var(&mut self, block: BlockId) -> Result<()> {
        let at = self.at;
        let Token::Var(name) = self.advance()? else {
            return Err(self.unexpected("a variable"));
        };
        self.expect_punct(':')?;
        let dtype = self.dtype()?;
        let shape = self.shape()?;
        let mut var = Var::new(name, dtype, shape);
        let mut flags = Flags::default();
        while let Token::Ident(word) = self.token {
            if flags.seen.contains(&word) {
                let message = format!("duplicate flag '{word}' of a variable");
                return Err(self.at_position(self.at, Error::invalid(message)));
            }
            flags.seen.push(word);
            self.var_flag(word, &mut var, &mut flags)?;
        }
        if let Some(param) = &mut flags.param {
            if !flags.seen.contains(&"param") {
                let error = Error::invalid(format!(
                    "'{}' is only valid for parameters",
                    flags.param_word.unwrap_or_default()
                ))
                .help("add 'param'");
                return Err(self.at_position(at, error));
            }
            var.param = Some(std::mem::take(param));
            var.persistable = flags.persistable.unwrap_or(true);
        } else {
            var.persistable = flags.persistable.unwrap_or(false);
        }
        if let Some(division) = flags.division {
            if !flags.seen.contains(&"split") {
                let error = Error::invalid("a part of a variable without the axis of its split");
                return Err(self.at_position(at, error.help("add 'split='")));
            }
            var.division = Some(division);
        }
        var.stop_gradient = flags.stop_gradient.unwrap_or_else(|| implied_stop_gradient(&var));
        self.program.add_var(block, var).map_err(|error| self.at_position(at, error))?;
        Ok(())
    }

    fn var_flag(&mut self, word: &'t str, var: &mut Var, flags: &mut Flags<'t>) -> Result<()> {
        if !FLAGS.contains(&word) {
            let hint = text::did_you_mean(&clipped(word), FLAGS);
            let error =
                Error::invalid(format!("unknown flag '{}' of a variable{hint}", clipped(word)))
                    .expected(format!("one of {}", FLAGS.join(", ")));
            return Err(self.at_position(self.at, error));
        }
        self.advance()?;
        if PARAM_FLAGS.contains(&word) {
            flags.param.get_or_insert_default();
            flags.param_word.get_or_insert(word);
        }
        let param = flags.param.as_mut();
        match (word, param) {
            ("sparse_rows", _) => var.kind = VarKind::SparseRows,
            ("tensor_array", _) => var.kind = VarKind::TensorArray,
            ("layout", _) => {
                self.expect_punct('=')?;
                var.layout = self.layout()?;
            }
            ("data", _) => var.is_data = true,
            ("persistable", _) => flags.persistable = Some(self.bool_flag()?),
            ("stop_gradient", _) => flags.stop_gradient = Some(self.bool_flag()?),
            ("lod", _) => {
                self.expect_punct('=')?;
                let at = self.at;
                let levels = self.unsigned("a number of levels")?;
                var.lod_level = u8::try_from(levels).map_err(|_| {
                    let error = Error::invalid("too many lod levels").expected("at most 255");
                    self.at_position(at, error.got(levels))
                })?;
            }
            ("split" | "split_groups" | "part" | "parts" | "padding", _) => {
                self.expect_punct('=')?;
                let at = self.at;
                let number = self.unsigned("a number")?;
                let number = usize::try_from(number)
                    .map_err(|_| self.at_position(at, Error::invalid("too large a number")))?;
                let division = flags.division.get_or_insert(Division::along(0));
                match word {
                    "split" => division.axis = number,
                    "split_groups" => division.groups = number,
                    "part" => division.part = number,
                    "parts" => division.parts = number,
                    _ => division.padding = number,
                }
            }
            ("frozen", Some(param)) => param.trainable = false,
            ("no_clip", Some(param)) => param.need_clip = false,
            ("distributed", Some(param)) => param.is_distributed = true,
            ("l1" | "l2", Some(Param { regularizer: Some(_), .. })) => {
                return Err(self.unexpected("only one of 'l1' and 'l2'"));
            }
            ("lr" | "l1" | "l2", Some(_)) => {
                self.expect_punct('=')?;
                let value = self.float("a number")?;
                if let Some(param) = &mut flags.param {
                    match word {
                        "lr" => param.learning_rate = value,
                        "l1" => param.regularizer = Some(Regularizer::L1(value)),
                        _ => param.regularizer = Some(Regularizer::L2(value)),
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads `=true`, `=false`, or nothing, which means true.
    fn bool_flag(&mut self) -> Result<bool> {
        if !self.eat_punct('=')? {
            return Ok(true);
        }
        let value = match self.token {
            Token::Ident("true") => true,
            Token::Ident("false") => false,
            _ => return Err(self.unexpected("'true' or 'false'")),
        };
        self.advance()?;
        Ok(value)
    }

    fn dtype(&mut self) -> Result<DType> {
        let Token::Ident(word) = self.token else {
            return Err(self.unexpected("an element type"));
        };
        let dtype =
            DType::parse(&clipped(word)).map_err(|error| self.at_position(self.at, error))?;
        self.advance()?;
        Ok(dtype)
    }

    fn layout(&mut self) -> Result<Layout> {
        let found = match self.token {
            Token::Ident(word) => Layout::ALL.into_iter().find(|layout| layout.name() == word),
            _ => None,
        };
        let known = || Layout::ALL.map(Layout::name).join(" or ");
        let layout = found.ok_or_else(|| self.unexpected(known()))?;
        self.advance()?;
        Ok(layout)
    }

    fn shape(&mut self) -> Result<Shape> {
        let at = self.at;
        let mut dims = Vec::new();
        self.expect_punct('[')?;
        while !self.eat_punct(']')? {
            let dim = match self.token {
                Token::Number(number) => number.parse::<i64>().ok(),
                _ => None,
            };
            dims.push(dim.ok_or_else(|| self.unexpected("a dimension (-1 for unknown)"))?);
            self.advance()?;
            if dims.len() > RANK_MAX {
                break;
            }
            if !self.is_punct(']') {
                self.expect_punct(',')?;
            }
        }
        Shape::new(&dims).map_err(|error| self.at_position(at, error))
    }

    fn op(&mut self, block: BlockId) -> Result<()> {
        let at = self.at;
        self.expect_punct('(')?;
        let outputs = self.slots()?;
        self.expect_punct('=')?;
        let name = self.word("the name of an op")?;
        self.expect_punct('(')?;
        let inputs = self.slots()?;
        let mut op = RawOp {
            at,
            block,
            name,
            inputs,
            outputs,
            attrs: Vec::new(),
            role: OpRole::FORWARD,
            device: None,
            fp16_guard: false,
            source: None,
        };
        if self.eat_punct('{')? {
            op.attrs = self.attrs()?;
        }
        while self.eat_punct('!')? {
            self.role(&mut op.role)?;
        }
        while let Token::Ident(label) = self.token {
            let target = match label {
                "device" => &mut op.device,
                "at" => &mut op.source,
                "fp16_guard" if !op.fp16_guard => {
                    op.fp16_guard = true;
                    self.advance()?;
                    continue;
                }
                _ => return Err(self.unexpected("'device', 'fp16_guard' or 'at'")),
            };
            if target.is_some() {
                let message = format!("duplicate label '{label}'");
                return Err(self.at_position(self.at, Error::invalid(message)));
            }
            self.advance()?;
            *target = Some(self.label()?);
        }
        self.ops.push(op);
        self.check_count(at, "ops", self.ops.len(), OPS_MAX)
    }

    /// Reads slots up to the closing parenthesis: `X: %a, %b, Y: %c)`.
    fn slots(&mut self) -> Result<Vec<Part<'t, Names<'t>>>> {
        let mut slots: Vec<Part<'t, Names<'t>>> = Vec::new();
        while !self.eat_punct(')')? {
            let at = self.at;
            if let (Token::Var(_), Some(slot)) = (&self.token, slots.last_mut()) {
                if let Token::Var(name) = self.advance()? {
                    slot.value.push((at, name));
                }
            } else {
                let name = self.word("a slot")?;
                self.expect_punct(':')?;
                if !matches!(self.token, Token::Var(_)) {
                    return Err(self.unexpected("a variable"));
                }
                if slots.iter().any(|slot| slot.name == name) {
                    let error = Error::invalid(format!("duplicate slot '{}'", clipped(&name)));
                    return Err(self.at_position(at, error));
                }
                slots.push(Part { at, name, value: Vec::new() });
                self.check_count(at, "slots on one side of an op", slots.len(), SLOTS_MAX)?;
                continue;
            }
            if !self.is_punct(')') {
                self.expect_punct(',')?;
                if self.is_punct(')') {
                    return Err(self.unexpected("a variable or a slot"));
                }
            }
        }
        Ok(slots)
    }

    /// Reads attributes up to the closing brace.
    fn attrs(&mut self) -> Result<Vec<Part<'t, Value<'t>>>> {
        let mut attrs: Vec<Part<'t, Value<'t>>> = Vec::new();
        while !self.eat_punct('}')? {
            let at = self.at;
            let name = self.word("an attribute")?;
            if attrs.iter().any(|attr| attr.name == name) {
                let error = Error::invalid(format!("duplicate attribute '{}'", clipped(&name)));
                return Err(self.at_position(at, error));
            }
            self.expect_punct(':')?;
            let value = self.value()?;
            attrs.push(Part { at, name, value });
            self.check_count(at, "attributes of an op", attrs.len(), SLOTS_MAX)?;
            if !self.is_punct('}') {
                self.expect_punct(',')?;
            }
        }
        Ok(attrs)
    }

    fn value(&mut self) -> Result<Value<'t>> {
        if !self.eat_punct('[')? {
            return self.single_value();
        }
        let mut values = Vec::new();
        while !self.eat_punct(']')? {
            let at = self.at;
            values.push((at, self.single_value()?));
            if !self.is_punct(']') {
                self.expect_punct(',')?;
            }
        }
        Ok(Value::List(values))
    }

    fn single_value(&mut self) -> Result<Value<'t>> {
        if !matches!(self.token, Token::Number(_) | Token::Ident(_) | Token::Str(_)) {
            return Err(self.unexpected("a value"));
        }
        Ok(match self.advance()? {
            Token::Number(number) => Value::Number(number),
            Token::Str(text) => Value::Str(text),
            Token::Ident(word) => Value::Ident(word),
            _ => Value::List(Vec::new()),
        })
    }

    /// Reads the role after '!'.
    fn role(&mut self, role: &mut OpRole) -> Result<()> {
        let Token::Ident(word) = self.token else {
            return Err(self.unexpected("a role"));
        };
        if word == "loss" && !role.is_loss() {
            self.advance()?;
            *role = role.with_loss();
            return Ok(());
        }
        if role.0 != 0 {
            return Err(self.unexpected("only one role"));
        }
        if word == "role" {
            self.advance()?;
            self.expect_punct('(')?;
            let bits = self.unsigned("the bits of a role")?;
            *role = match u32::try_from(bits) {
                Ok(bits) => OpRole(bits).base(),
                Err(_) => return Err(self.unexpected("32 bits").got(bits)),
            };
            return self.expect_punct(')');
        }
        let known = || ROLES.iter().map(|(name, _)| *name).chain(["loss"]);
        match ROLES.iter().find(|(name, _)| *name == word) {
            Some((_, found)) => *role = *found,
            None => {
                let word = clipped(word);
                let hint = text::did_you_mean(&word, known());
                let error = Error::invalid(format!("unknown role '{word}'{hint}"))
                    .expected(format!("one of {}", known().collect::<Vec<_>>().join(", ")));
                return Err(self.at_position(self.at, error));
            }
        }
        self.advance().map(drop)
    }

    // Second pass

    fn resolve(mut self) -> Result<Program> {
        let mut owners = BlockOwners::default();
        for raw in std::mem::take(&mut self.ops) {
            let (block, op) = (raw.block, self.resolve_op(raw, &mut owners)?);
            self.program.append_op(block, op);
        }
        Ok(self.program)
    }

    fn resolve_op(&self, raw: RawOp<'t>, owners: &mut BlockOwners) -> Result<Op> {
        let spec = self.dialect.spec(&raw.name).ok_or_else(|| {
            let name = clipped(&raw.name);
            let hint = text::did_you_mean(&name, self.dialect.names());
            self.at_position(raw.at, Error::invalid(format!("unknown op '{name}'{hint}")))
        })?;
        let mut builder = Op::build(spec);
        for slot in raw.inputs {
            builder = builder.inputs(&slot.name, &self.vars(&slot.value)?);
            builder.check_so_far().map_err(|error| self.at_position(slot.at, error))?;
        }
        for slot in raw.outputs {
            builder = builder.outputs(&slot.name, &self.vars(&slot.value)?);
            builder.check_so_far().map_err(|error| self.at_position(slot.at, error))?;
        }
        for attr in raw.attrs {
            let kind = spec.attr_index(&attr.name).map(|index| spec.attrs[index].kind);
            let value = self.attr_value(attr.at, attr.value, kind)?;
            if let Attr::Block(inner) = value {
                owners
                    .claim(&self.program, raw.block, inner)
                    .map_err(|error| self.at_position(attr.at, error))?;
            }
            builder = builder.attr(&attr.name, value);
            builder.check_so_far().map_err(|error| self.at_position(attr.at, error))?;
        }
        builder
            .role(raw.role)
            .device(raw.device)
            .fp16_guard(raw.fp16_guard)
            .source(raw.source)
            .finish()
            .map_err(|error| self.at_position(raw.at, error))
    }

    fn vars(&self, names: &Names<'t>) -> Result<Vec<VarId>> {
        let find = |(at, name): &(Position, Cow<'t, str>)| {
            self.program.var_named(name).map_err(|error| self.at_position(*at, error))
        };
        names.iter().map(find).collect()
    }

    /// Converts a value to the type in the spec. For an attribute that the spec does not have, the
    /// type follows from the value's form, and the builder rejects it.
    fn attr_value(&self, at: Position, value: Value<'t>, kind: Option<AttrKind>) -> Result<Attr> {
        let wrong = |what: &str, got: &str| {
            let error = Error::invalid("wrong type of attribute value");
            self.at_position(at, error.expected(what).got(format!("'{}'", clipped(got))))
        };
        Ok(match value {
            Value::Str(text) => Attr::Str(text.into_owned()),
            Value::Number(number) if kind == Some(AttrKind::Float) => {
                Attr::Float(float(number).ok_or_else(|| wrong("a number", number))?)
            }
            Value::Number(number) => match number.parse::<i64>() {
                Ok(value) => Attr::Int(value),
                Err(_) if kind == Some(AttrKind::Int) => {
                    return Err(wrong("a 64-bit integer", number));
                }
                Err(_) => Attr::Float(float(number).ok_or_else(|| wrong("a number", number))?),
            },
            Value::Ident("true") => Attr::Bool(true),
            Value::Ident("false") => Attr::Bool(false),
            Value::Ident(word) => {
                if let Some(value) = float(word) {
                    Attr::Float(value)
                } else if let Some(block) = block_id(word) {
                    Attr::Block(block)
                } else if let Ok(dtype) = DType::parse(&clipped(word)) {
                    Attr::DType(dtype)
                } else {
                    let what = kind.map_or("a value", AttrKind::name);
                    return Err(wrong(what, word).help("put strings in quotes"));
                }
            }
            Value::List(values) => self.list(values, kind)?,
        })
    }

    fn list(&self, values: Vec<(Position, Value<'t>)>, kind: Option<AttrKind>) -> Result<Attr> {
        let element = match kind {
            Some(AttrKind::Floats) => Some(AttrKind::Float),
            Some(AttrKind::Strs) => Some(AttrKind::Str),
            Some(AttrKind::Ints) => Some(AttrKind::Int),
            _ => None,
        };
        let (mut ints, mut floats, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, value) in values {
            match self.attr_value(at, value, element)? {
                Attr::Int(value) if floats.is_empty() && texts.is_empty() => ints.push(value),
                Attr::Float(value) if ints.is_empty() && texts.is_empty() => floats.push(value),
                Attr::Str(value) if ints.is_empty() && floats.is_empty() => texts.push(value),
                other => {
                    let what = element.map_or("values of one type", AttrKind::name);
                    let error = Error::invalid("wrong type of list element");
                    return Err(self.at_position(at, error.expected(what).got(other.kind())));
                }
            }
        }
        Ok(match (floats.is_empty(), texts.is_empty()) {
            (false, _) => Attr::Floats(floats),
            (_, false) => Attr::Strs(texts),
            _ => Attr::Ints(ints),
        })
    }
}

/// The flags of a variable as read, before they are combined.
#[derive(Default)]
struct Flags<'t> {
    seen: Vec<&'t str>,
    persistable: Option<bool>,
    stop_gradient: Option<bool>,
    param: Option<Param>,
    /// The first flag that only parameters may have.
    param_word: Option<&'t str>,
    division: Option<Division>,
}

const FLAGS: [&str; 19] = [
    "layout",
    "data",
    "persistable",
    "param",
    "frozen",
    "lr",
    "l1",
    "l2",
    "no_clip",
    "distributed",
    "sparse_rows",
    "tensor_array",
    "lod",
    "split",
    "split_groups",
    "part",
    "parts",
    "padding",
    "stop_gradient",
];

const PARAM_FLAGS: [&str; 7] = ["param", "frozen", "lr", "l1", "l2", "no_clip", "distributed"];

/// Parses a number, `nan`, `inf` or `-inf`.
fn float(text: &str) -> Option<f64> {
    match text {
        "nan" | "NaN" => Some(f64::NAN),
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        // Words such as "infinity" are names, not numbers.
        _ if text.bytes().any(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

/// Parses `block3`.
fn block_id(word: &str) -> Option<BlockId> {
    let index: u32 = word.strip_prefix("block")?.parse().ok()?;
    (index < u32::MAX).then(|| BlockId::from_index(index as usize))
}
