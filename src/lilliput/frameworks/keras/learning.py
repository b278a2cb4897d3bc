"""Optimizers and what quantizers learn: built before or after, they train the variables of both.

An optimizer of Keras is built for a list of variables, with slots (momentum, velocity) for each, and takes
no others. Variables that come later are put into that list where the model has them, since on JAX gradients
are told apart by their place alone. They are not decayed: that would pull a learned scale to zero, which is
not a small scale but none. In files the optimizer is the one of the plain model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from lilliput.errors import ConfigError
from lilliput.frameworks.keras.scopes import strategy_of
from lilliput.frameworks.keras.variables import OURS, to_array

_ADOPTED = "_lilliput_optimizers"
_EXCLUDED = "_exclude_from_weight_decay"
_SPARED = "_lilliput_spared"


def parts_of(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer, and those inside it."""
    yield optimizer
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    for part in inner:
        if part is not None:
            yield from parts_of(part)


class Adopted:
    """An optimizer that trains what is learned in a model, until it is removed."""

    def __init__(self, optimizer: Any, model: Any) -> None:
        self.optimizer, self.model = optimizer, model
        vars(model).setdefault(_ADOPTED, []).append(optimizer)
        reconcile(model)

    def remove(self) -> None:
        """Take the variables out again, and what the optimizer remembers of them."""
        held = vars(self.model).get(_ADOPTED, [])
        held[:] = [other for other in held if other is not self.optimizer]
        if not held:
            vars(self.model).pop(_ADOPTED, None)
        if self.optimizer is not getattr(self.model, "optimizer", None):
            _agree(self.optimizer, self.model, [])


def reconcile(model: Any) -> None:
    """Make the optimizers of a model train what is learned in it, and nothing that was."""
    optimizers = _optimizers_of(model)
    learned = learned_in(model) if optimizers else []
    for optimizer in optimizers:
        _agree(optimizer, model, learned)


def learned_in(model: Any) -> list[Any]:
    """Return the variables of a model that an algorithm has added to train them."""
    return [variable for variable in model.trainable_variables if _is_ours(variable)]


def _optimizers_of(model: Any) -> list[Any]:
    given = [*vars(model).get(_ADOPTED, ()), getattr(model, "optimizer", None)]
    return list({id(optimizer): optimizer for optimizer in given if optimizer is not None}.values())


def _is_ours(variable: Any) -> bool:
    return str(getattr(variable, "name", "")).startswith(OURS)


def _agree(optimizer: Any, model: Any, learned: Sequence[Any]) -> None:
    """Make an optimizer train these variables of ours and no others."""
    for part in parts_of(optimizer):
        trained = list(getattr(part, "_trainable_variables", ()))
        gone = _without([v for v in trained if _is_ours(v)], learned)
        if gone:
            _drop(part, gone)
        _spare_from_decay(part, learned)
        _hide_in_files(part, bool(learned))
    if optimizer.built and _without(learned, optimizer._trainable_variables):
        _check_fit(optimizer)
        with strategy_of(model):
            for part in parts_of(optimizer):
                _insert(part, _without(learned, part._trainable_variables), model)


def _check_fit(optimizer: Any) -> None:
    if any(hasattr(part, "optimizers") for part in parts_of(optimizer)):
        raise ConfigError(
            "optimizer: a MultiOptimizer that is built takes no scales to learn; make a new one after "
            "compress(): model.compile(optimizer, ...)."
        )


def _without(variables: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    known = {id(other) for other in others}
    return [variable for variable in variables if id(variable) not in known]


# -- slots -------------------------------------------------------------------------------------------


def _slots(part: Any, count: int) -> dict[str, list[Any]]:
    """Return the lists in which an optimizer has something for each of its variables, by attribute."""
    return {
        name: list(held)
        for name, held in vars(part).items()
        if isinstance(held, list)
        and len(held) == count
        and name not in ("_variables", "_trainable_variables")
        and all(slot is None or isinstance(slot, keras.Variable) for slot in held)
    }


def slots_of(model: Any, variable: Any) -> dict[str, Any]:
    """Return copies of what an optimizer of a model remembers of a variable, empty if there is nothing."""
    return {name: to_array(slot) for name, slot in _find_slots(model, variable).items()}


def put_slots(model: Any, variable: Any, slots: Mapping[str, Any]) -> bool:
    """Put back what :func:`slots_of` returned; False if no optimizer has the variable yet."""
    held = _find_slots(model, variable)
    for name in held.keys() & slots.keys():
        held[name].assign(slots[name])
    return bool(held)


def _find_slots(model: Any, variable: Any) -> dict[str, Any]:
    for part in (part for optimizer in _optimizers_of(model) for part in parts_of(optimizer)):
        trained = list(getattr(part, "_trainable_variables", ()))
        for index in (i for i, held in enumerate(trained) if held is variable):
            found = {name: held[index] for name, held in _slots(part, len(trained)).items()}
            if found:
                return {name: slot for name, slot in found.items() if slot is not None}
    return {}


def _drop(part: Any, gone: Sequence[Any]) -> None:
    """Take variables out of an optimizer."""
    trained = list(part._trainable_variables)
    stays = [bool(_without([variable], gone)) for variable in trained]
    for name, held in _slots(part, len(trained)).items():
        for slot in (slot for slot, stay in zip(held, stays, strict=True) if not stay):
            part._tracker.untrack(slot)
        vars(part)[name] = [slot for slot, stay in zip(held, stays, strict=True) if stay]
    _number(part, [variable for variable, stay in zip(trained, stays, strict=True) if stay])


def _insert(part: Any, added: Sequence[Any], model: Any) -> None:
    """Put variables into an optimizer that is built, each in its place among those of the model."""
    trained = list(part._trainable_variables)
    before = _slots(part, len(trained))
    fresh = _build(part, added) if not hasattr(part, "inner_optimizer") else {}
    every = [*trained, *added]
    ranks = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
    rank = [ranks.get(id(variable), -1) for variable in every]
    order = list(range(len(trained)))
    for i in range(len(trained), len(every)):
        earlier = [place for place, j in enumerate(order) if rank[j] < rank[i]]
        order.insert(max(earlier, default=-1) + 1, i)
    for name in before.keys() & fresh.keys():
        vars(part)[name] = [[*before[name], *fresh[name]][i] for i in order]
    _number(part, [every[i] for i in order])


def _build(part: Any, added: Sequence[Any]) -> dict[str, list[Any]]:
    """Return new slots for variables, as the optimizer makes them; it is otherwise as it was."""
    saved, known = dict(vars(part)), list(part._variables)
    part.built = False
    vars(part).update(_trainable_variables=[], _trainable_variables_indices={})
    try:
        part.build(list(added))
        fresh = _slots(part, len(added))
        fresh = {name: held for name, held in fresh.items() if held is not saved.get(name)}
    finally:
        for name in set(vars(part)) - set(saved):
            del vars(part)[name]
        vars(part).update(saved)
    kept = [*known, *(slot for held in fresh.values() for slot in held)]
    for variable in _without(part._variables, kept):  # new ones of what there is once
        part._tracker.untrack(variable)
    return fresh


def _number(part: Any, variables: list[Any]) -> None:
    vars(part)["_trainable_variables"] = variables
    keys = {part._var_key(variable): i for i, variable in enumerate(variables)}
    vars(part)["_trainable_variables_indices"] = keys


# -- decay and files -----------------------------------------------------------------------------------


def _spare_from_decay(part: Any, learned: Sequence[Any]) -> None:
    """Exclude these variables of ours from weight decay; Keras has a method for it, for once and all."""
    held, spared = (set(vars(part).get(name, ())) for name in (_EXCLUDED, _SPARED))
    keys = {part._var_key(variable) for variable in learned}
    if keys == spared:
        return
    for name, value in ((_EXCLUDED, held - spared | keys), (_SPARED, keys)):
        vars(part).pop(name, None)
        if value:
            vars(part)[name] = value
    known = vars(part).get(f"{_EXCLUDED}_cache", {})  # what Keras has decided already
    for key in keys | spared:
        known.pop(key, None)


def _hide_in_files(part: Any, hides: bool) -> None:
    """Let an optimizer save and load what it has for variables of the model, and for none of ours."""
    for name in ("save_own_variables", "load_own_variables"):
        if not hides:
            vars(part).pop(name, None)
        elif name not in vars(part):
            vars(part)[name] = _as_plain(part, getattr(type(part), name))


def _as_plain(part: Any, method: Any) -> Any:
    def run(store: Any) -> Any:
        gone = [variable for variable in part._trainable_variables if _is_ours(variable)]
        return method(_Plain(part, gone), store)

    return run


class _Plain:
    """An optimizer as files have it."""

    def __init__(self, optimizer: Any, gone: Sequence[Any]) -> None:
        self._optimizer = optimizer
        hidden = []
        for part in parts_of(optimizer):
            trained = getattr(part, "_trainable_variables", [])
            ours = {id(variable) for variable in gone}
            for held in _slots(part, len(trained)).values():
                hidden += [s for s, v in zip(held, trained, strict=True) if id(v) in ours]
        self.variables = _without(optimizer.variables, hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
