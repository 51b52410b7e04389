"""Loops of independent sub-calls, run as one batch.

The loop itself is left as it is and runs as it would have: in front of it, its prompts are
worked out and sent as one batch, and where the loop then makes a call with one of these prompts,
the answer is there already. So results, order of effects and place of failure stay the same; if
a prompt turns out to be another one after all, the call is made as it was written.

That is done where working out the prompts ahead has no effect of its own and no part of the loop
changes what they are made of; elsewhere the loop is left alone, and the reason is given.

Standard library only: the REPL process loads this file by its path.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import linecache
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

QUERIES = ("llm_query", "rlm_query")
AT_ONCE = 1_000
"""Prompts of one batch; a longer loop makes several."""
_PREFETCH, _AGAIN = "__rlm_prefetch__", "__rlm_again__"
_BUILTINS = frozenset(
    "abs all any bin bool bytes chr dict divmod enumerate filter float format frozenset hex int "  # noqa: SIM905
    "isinstance len list map max min oct ord range repr reversed round set slice sorted str sum "
    "tuple type zip".split()
)
_PASSING_ON = frozenset(("enumerate", "filter", "list", "map", "reversed", "set", "tuple", "zip"))
"""Their arguments are read through, so they have to be such that can be read twice."""
_CONSUMERS = frozenset(("dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"))
_METHODS = frozenset(
    "capitalize casefold center copy count decode encode endswith expandtabs find findall format "  # noqa: SIM905
    "format_map get group groups groupdict head index isalnum isalpha isdecimal isdigit islower "
    "isspace istitle isupper items iterrows itertuples join keys ljust lower lstrip match "
    "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
    "search split splitlines startswith strip sub swapcase tail title to_dict to_string tolist "
    "translate union upper values zfill".split()
)
_MODULES = frozenset(("json", "math", "operator", "re", "string", "textwrap", "unicodedata"))
_TWICE = (str, bytes, list, tuple, dict, set, frozenset, range, deque)
_TABLES = frozenset(("numpy", "pandas", "polars", "pyarrow"))
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PLAIN = (
    *(ast.Constant, ast.Name, ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.UnaryOp),
    *(ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.Tuple, ast.List),
    *(ast.Dict, ast.Set, ast.Starred, ast.Attribute, ast.keyword, ast.Lambda, ast.arguments),
    *(ast.arg, ast.comprehension, *_COMPREHENSIONS),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


class _No(Exception):
    """Why a loop is left alone."""


def rewrite(tree: ast.Module, namespace: dict[str, Any]) -> Callable[[], list[str]]:
    """Change the loops of a block that can run as batches.

    Returns
    -------
    Callable
        What was done, one text a loop; to be called when the block has ended.
    """
    report = Report(namespace)
    rewriter = _Rewriter(tree, namespace, report)
    rewriter.visit(tree)
    ast.fix_missing_locations(tree)
    namespace[_PREFETCH], namespace[_AGAIN] = report.prefetch, again
    return report.notes


class Report:
    """What has become of the loops of one block."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._originals: dict[str, Any] = {name: namespace.get(name) for name in QUERIES}
        self._batched: dict[str, Any] = {name: namespace.get(f"{name}_batched") for name in QUERIES}
        self._left: dict[int, str] = {}
        self._calls: dict[tuple[int, str], list[int]] = {}

    def left(self, line: int, reason: str) -> None:
        """A loop runs as it was written."""
        self._left.setdefault(line, reason)

    def prefetch(
        self,
        prompts: Callable[[], Iterable[Any]],
        name: str,
        function: Any,
        model: Any,
        line: int,
    ) -> Callable[..., str]:
        """The function that a loop calls in place of ``llm_query``."""
        batched = self._batched[name]
        if function is not self._originals[name] or batched is None:
            return lambda *given, **named: function(*given, **named)
        waiting = self._prompts(prompts, line)
        answers: dict[str, deque[str]] = {}

        def fetch() -> None:
            chosen = list(itertools.islice(waiting, AT_ONCE))
            if len(chosen) < 2:
                return  # one call is no batch
            try:
                got = batched(chosen, model)
            except RuntimeError:  # the batch is refused as a whole: call by call, then
                return
            for prompt, answer in zip(chosen, got, strict=True):
                answers.setdefault(prompt, deque()).append(answer)
            self._calls.setdefault((line, name), []).append(len(chosen))

        def take(prompt: Any, model: Any = model) -> str:
            if isinstance(prompt, str):
                if not answers:
                    fetch()
                if answers.get(prompt):
                    found = answers[prompt]
                    answer = found.popleft()
                    if not found:
                        del answers[prompt]
                    return answer
            single: str = function(prompt, model)
            return single

        fetch()
        return take

    def _prompts(self, prompts: Callable[[], Iterable[Any]], line: int) -> Iterator[str]:
        try:
            for prompt in prompts():
                if isinstance(prompt, str):  # another value is refused when its turn comes
                    yield prompt
        except _No as reason:
            self.left(line, str(reason))
        except Exception:
            return  # it is raised again, in its place, by the loop itself

    def notes(self) -> list[str]:
        """One text a loop."""
        found = []
        for (line, name), sizes in self._calls.items():
            batches = "one batch" if len(sizes) == 1 else f"{len(sizes):,} batches"
            found.append((line, f"{sum(sizes):,} calls of {name} ran as {batches}"))
        left = [(line, f"left alone: {why}") for line, why in self._left.items()]
        return [f"auto-batch: line {line}: {text}" for line, text in sorted(found + left)]


def again(value: Any) -> Any:
    """The value, if going through it a second time gives the same and has no effect."""
    if isinstance(value, _TWICE) or type(value).__module__.partition(".")[0] in _TABLES:
        return value
    if type(value).__module__ == "builtins" and type(value).__name__ in (
        *("dict_keys", "dict_values", "dict_items", "memoryview", "mappingproxy"),
    ):
        return value
    raise _No(f"what it goes through is a {type(value).__name__}, which may be readable only once")


class _Rewriter(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, namespace: dict[str, Any], report: Report) -> None:
        self._purity = _Purity(tree, namespace)
        self._report = report
        self._numbers = itertools.count(1)
        self._consumed: set[int] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node  # its body has a scope of its own that inner functions do not see

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
        if len(node.args) == 1 and (name in _CONSUMERS or name == "join"):
            self._consumed.add(id(node.args[0]))
        self.generic_visit(node)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if _own_calls([node.test, *node.body]):
            self._report.left(node.lineno, "a `while` loop may depend on what it has done so far")
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        if _own_calls(node.body):
            self._report.left(node.lineno, "it is an `async for`")
        return node

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        calls = _own_calls(node.body)
        before: list[ast.stmt] = []
        for call in calls:
            try:
                before += self._prefetched(node, call)
            except _No as reason:
                self._report.left(node.lineno, str(reason))
        return [*before, node]

    def _prefetched(self, loop: ast.For, call: ast.Call) -> list[ast.stmt]:
        """What is to stand before the loop; the call in it is changed."""
        prompt, model = _arguments(call)
        _check_flow(loop, call)
        steps = _steps(loop, call, prompt)
        pure = self._purity.check
        for part in (loop.iter, prompt, model, *(step.value for step in steps)):
            pure(part)
        made = {*_stored([loop.target]), *(n for step in steps for n in _stored([step]))}
        needed = _loaded([loop.iter, prompt, model, *(step.value for step in steps)])
        _check_changes(loop.body, needed - made, _loaded([model]) & made)
        number = next(self._numbers)
        prompts, take = f"_rlm_prompts_{number}", f"_rlm_take_{number}"
        inner = ast.For(
            target=copy.deepcopy(loop.target),
            iter=_readable_twice(copy.deepcopy(loop.iter)),
            body=[*map(copy.deepcopy, steps), ast.Expr(ast.Yield(copy.deepcopy(prompt)))],
            orelse=[],
        )
        made_by: Any = ast.FunctionDef(
            name=prompts, args=_no_arguments(), body=[inner], decorator_list=[], returns=None
        )
        if "type_params" in ast.FunctionDef._fields:
            made_by.type_params = []
        fetch = self._fetch(ast.Name(prompts, ast.Load()), call, model, loop.lineno)
        assign = ast.Assign([ast.Name(take, ast.Store())], fetch)
        _replace(call, take, prompt)
        for statement in (made_by, assign):
            ast.copy_location(statement, loop)
        return [made_by, assign]

    def _fetch(self, prompts: ast.expr, call: ast.Call, model: ast.expr, line: int) -> ast.expr:
        name = _query(call)
        function = ast.Name(_PREFETCH, ast.Load())
        arguments = [
            prompts,
            ast.Constant(name),
            ast.Name(name, ast.Load()),
            copy.deepcopy(model),
            ast.Constant(line),
        ]
        return ast.copy_location(ast.Call(function, arguments, []), call)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._comprehension(node, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self._comprehension(node, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        return self._comprehension(node, [node.key, node.value])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        if id(node) not in self._consumed:
            self.generic_visit(node)
            if _own_calls([node.elt]):
                self._report.left(node.lineno, "a generator may not be read to its end")
            return node
        return self._comprehension(node, [node.elt])

    def _comprehension(self, node: Any, parts: list[ast.expr]) -> ast.AST:
        self.generic_visit(node)
        conditions = [test for generator in node.generators for test in generator.ifs]
        if _own_calls(conditions):
            self._report.left(node.lineno, "a call decides which items there are")
            return node  # type: ignore[no-any-return]
        outer: ast.expr = node
        for call in _own_calls(parts):
            try:
                outer = self._prefetched_comprehension(node, outer, call, parts)
            except _No as reason:
                self._report.left(node.lineno, str(reason))
        return outer

    def _prefetched_comprehension(
        self, node: Any, outer: ast.expr, call: ast.Call, parts: list[ast.expr]
    ) -> ast.expr:
        prompt, model = _arguments(call)
        if any(generator.is_async for generator in node.generators):
            raise _No("it is an `async for`")
        for part in parts:
            _check_expression(part, call)
        made = {name for generator in node.generators for name in _stored([generator.target])}
        if _loaded([model]) & made:
            raise _No("the model changes from call to call")
        for generator in node.generators:
            for each in (generator.iter, *generator.ifs):
                self._purity.check(each)
        self._purity.check(prompt)
        self._purity.check(model)
        _check_changes(parts, _loaded([prompt, model, *(g.iter for g in node.generators)]), set())
        generators = copy.deepcopy(node.generators)
        for generator in generators:
            generator.iter = _readable_twice(generator.iter)
        prompts = ast.Lambda(
            _no_arguments(), ast.GeneratorExp(elt=copy.deepcopy(prompt), generators=generators)
        )
        take = f"_rlm_take_{next(self._numbers)}"
        fetch = self._fetch(prompts, call, model, node.lineno)
        _replace(call, take, prompt)
        parameters = _no_arguments()
        parameters.args.append(ast.arg(take))
        return ast.copy_location(ast.Call(ast.Lambda(parameters, outer), [fetch], []), node)


class _Purity:
    """Whether working something out has no effect."""

    def __init__(self, tree: ast.Module, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._functions: dict[str, list[Any]] = {}
        self._modules: set[str] = set()
        self._rebound = _stored([tree])
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                for name in _stored(node.targets):
                    self._functions.setdefault(name, []).append(node.value)
            elif isinstance(node, ast.Import):
                self._modules |= {each.name for each in node.names if each.asname is None}
        self._checked: set[int] = set()

    def check(self, expression: ast.expr, local: frozenset[str] = frozenset()) -> None:
        """Raise _No if it may have an effect, or cannot be seen through."""
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                self._check_call(node, local)
            elif not isinstance(node, _PLAIN):
                raise _No(f"a prompt with `{ast.unparse(node)[:40]}` cannot be worked out ahead")

    def _check_call(self, node: ast.Call, local: frozenset[str]) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            root = _name(function.value)
            if root in _MODULES and (root in self._modules or self._is_module(root)):
                return
            if function.attr in _METHODS:
                return
            raise _No(f"`.{function.attr}()` may have effects")
        name = _name(function)
        if name is None:
            raise _No(f"`{ast.unparse(function)[:40]}` may have effects")
        if name in QUERIES or name.removesuffix("_batched") in QUERIES:
            raise _No("a prompt needs the answer of another call")
        known = self._functions.get(name)
        if known is None and self._is_builtin(name):
            return
        if known is None:
            known = _source(self._namespace.get(name))
        elif name in self._rebound and len(known) > 1:
            raise _No(f"`{name}` is defined more than once")
        if not known:
            raise _No(f"`{name}()` may have effects")
        self._check_function(name, known[0])

    def _is_builtin(self, name: str) -> bool:
        if name not in _BUILTINS or name in self._rebound:
            return False
        original = getattr(builtins, name)
        return self._namespace.get(name, original) is original

    def _is_module(self, name: str) -> bool:
        found = self._namespace.get(name)
        return isinstance(found, types.ModuleType) and found.__name__ == name

    def _check_function(self, name: str, node: Any) -> None:
        if id(node) in self._checked:
            return
        self._checked.add(id(node))  # before its body: it may call itself
        try:
            if isinstance(node, ast.Lambda):
                self.check(node.body)
            elif isinstance(node, ast.AsyncFunctionDef) or node.decorator_list:
                raise _No("it is decorated or async")
            else:
                self._check_body(node.body, set())
        except _No as reason:
            self._checked.discard(id(node))
            raise _No(f"`{name}()` may have effects: {reason}") from None

    def _check_body(self, body: list[ast.stmt], own: set[str]) -> None:
        """``own``: local names that hold what the function itself has made."""
        for statement in body:
            if isinstance(statement, ast.Return):
                if statement.value is not None:
                    self.check(statement.value)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                if any(not isinstance(t, ast.Name | ast.Tuple) for t in targets):
                    raise _No("it changes an object")
                if statement.value is not None:
                    self.check(statement.value)
                    if isinstance(statement.value, ast.List | ast.Constant | ast.JoinedStr):
                        own |= _stored(targets)
            elif isinstance(statement, ast.AugAssign) and _name(statement.target) in own:
                self.check(statement.value)
            elif isinstance(statement, ast.If):
                self.check(statement.test)
                self._check_body(statement.body, own)
                self._check_body(statement.orelse, own)
            elif isinstance(statement, ast.For):
                self.check(statement.iter)
                self._check_body([*statement.body, *statement.orelse], own)
            elif isinstance(statement, ast.Expr):
                self._check_statement(statement.value, own)
            elif not isinstance(statement, ast.Pass | ast.Break | ast.Continue):
                raise _No(f"`{ast.unparse(statement)[:40]}`")

    def _check_statement(self, value: ast.expr, own: set[str]) -> None:
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in ("append", "extend")
            and _name(value.func.value) in own
        ):
            for argument in value.args:
                self.check(argument)
        else:
            self.check(value)


def _source(function: Any) -> list[Any]:
    """The definition of a function that an earlier block made."""
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return []
    code = function.__code__
    cached = linecache.cache.get(code.co_filename)
    if not code.co_filename.startswith("<block ") or cached is None or len(cached) < 4:
        return []
    try:
        tree = ast.parse("".join(cached[2]).removeprefix("\ufeff"))
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Lambda,) if function.__name__ == "<lambda>" else (ast.FunctionDef,)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.lineno == code.co_firstlineno
    ]
    return found if len(found) == 1 else []


def _own_calls(parts: Iterable[ast.AST]) -> list[ast.Call]:
    """The sub-calls in these parts, without those of inner loops and functions."""
    found: list[ast.Call] = []
    for part in parts:
        if isinstance(part, (*_LOOPS, *_COMPREHENSIONS, *_SCOPES)):
            continue
        if isinstance(part, ast.Call) and _query(part):
            found.append(part)
        found += _own_calls(ast.iter_child_nodes(part))
    return found


def _query(call: ast.Call) -> str:
    name = _name(call.func)
    return name if name in QUERIES else ""


def _arguments(call: ast.Call) -> tuple[ast.expr, ast.expr]:
    """Prompt and model."""
    given = dict(zip(("prompt", "model"), call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in ("prompt", "model") or keyword.arg in given:
            raise _No("its arguments are not plain")
        given[keyword.arg] = keyword.value
    if "prompt" not in given or len(call.args) > 2:
        raise _No("its arguments are not plain")
    if any(isinstance(each, ast.Starred) for each in call.args):
        raise _No("its arguments are not plain")
    return given["prompt"], given.get("model", ast.Constant(None))


def _check_flow(loop: ast.For, call: ast.Call) -> None:
    """Raise unless each round of the loop makes the call."""
    reached = False
    for statement in loop.body:
        holds = any(node is call for node in ast.walk(statement))
        for node in _walk_own(statement):
            if isinstance(node, ast.Break | ast.Return | ast.Raise):
                word = type(node).__name__.lower()
                raise _No(f"it may end early (`{word}`)")
            if isinstance(node, ast.Continue) and not reached:
                raise _No("a round may be left out (`continue`)")
            if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
                raise _No("it hands control to others in between")
        if holds:
            simple = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
            if not isinstance(statement, simple):
                raise _No("the call depends on a condition")
            for part in ast.iter_child_nodes(statement):
                if isinstance(part, ast.expr):
                    _check_expression(part, call)
            reached = True


def _walk_own(statement: ast.AST) -> Iterator[ast.AST]:
    yield statement
    if isinstance(statement, _SCOPES):
        return
    for child in ast.iter_child_nodes(statement):
        for node in _walk_own(child):
            inside = isinstance(statement, ast.For | ast.While)
            if not (inside and isinstance(node, ast.Break | ast.Continue)):
                yield node


def _check_expression(part: ast.expr, call: ast.Call) -> None:
    """Raise if working out the expression may not make the call."""
    for node in ast.walk(part):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            raise _No(f"`{ast.unparse(node)[:40]}` stands beside the call")
        later: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            later = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            later = node.values[1:]
        elif isinstance(node, ast.Compare):
            later = node.comparators[1:]
        if any(inner is call for each in later for inner in ast.walk(each)):
            raise _No("the call depends on a condition")


def _steps(loop: ast.For, call: ast.Call, prompt: ast.expr) -> list[ast.Assign]:
    """The assignments of the loop's body that the prompt is made of."""
    before: list[ast.stmt] = []
    for statement in loop.body:
        if any(node is call for node in ast.walk(statement)):
            break
        before.append(statement)
    needed = _loaded([prompt])
    steps: list[ast.Assign] = []
    for statement in reversed(before):
        if isinstance(statement, ast.Assign) and _stored(statement.targets) & needed:
            if not all(isinstance(each, ast.Name | ast.Tuple) for each in statement.targets):
                raise _No("a prompt is made of an object that the loop changes")
            steps.insert(0, statement)
            needed |= _loaded([statement.value])
    kept = {id(step) for step in steps}
    target = _stored([loop.target])
    others = _stored([each for each in loop.body if id(each) not in kept])
    for name in sorted(needed):
        if name in others or sum(name in _stored([step]) for step in steps) > 1:
            raise _No(f"`{name}` is changed in the loop")
        made_here = any(name in _stored([step]) for step in steps)
        if made_here and name in target:
            raise _No(f"`{name}` is changed in the loop")
    first: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in _loaded([step.value]):
            first.setdefault(name, at)
        for name in _stored([step]):
            if first.get(name, at + 1) <= at:
                raise _No(f"`{name}` goes from one round to the next")
    return steps


def _check_changes(body: Iterable[ast.AST], names: set[str], by_round: set[str]) -> None:
    """Raise if the body changes an object that a prompt is made of."""
    if by_round:
        raise _No("the model changes from call to call")
    for part in body:
        for node in ast.walk(part):
            name: str | None = None
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(
                node.ctx, ast.Load
            ):
                name = _root(node)
            elif isinstance(node, ast.AugAssign):
                name = _root(node.target)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr not in _METHODS:
                    name = _root(node.func)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                name = node.id
            elif isinstance(node, ast.Global | ast.Nonlocal):
                raise _No("it has a `global`")
            if name is not None and name in names and name not in _MODULES:
                raise _No(f"`{name}` is changed in the loop")


def _readable_twice(node: ast.expr) -> ast.expr:
    """The same, with a check (when it runs) of what it goes through."""
    if isinstance(node, ast.Call) and _name(node.func) in _PASSING_ON:
        skip = 1 if _name(node.func) in ("map", "filter") else 0
        node.args = [*node.args[:skip], *map(_readable_twice, node.args[skip:])]
        return node
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return ast.copy_location(ast.Call(ast.Name(_AGAIN, ast.Load()), [node], []), node)
    return node


def _replace(call: ast.Call, take: str, prompt: ast.expr) -> None:
    call.func = ast.copy_location(ast.Name(take, ast.Load()), call.func)
    call.args, call.keywords = [prompt], []


def _no_arguments() -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
    )


def _name(node: ast.AST | None) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return _name(node)


def _loaded(parts: Iterable[ast.AST]) -> set[str]:
    found = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)]
    return {node.id for node in found if isinstance(node.ctx, ast.Load)}


def _stored(parts: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found
