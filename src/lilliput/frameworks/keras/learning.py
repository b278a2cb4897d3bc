"""Train the learned variables of compressors with Keras optimizers, built before or after.

A Keras optimizer is built for a list of variables, with slots (momentum, velocity) for each, and accepts
no others. Later variables are inserted into that list in the order of the model, since on JAX gradients
are identified by their position alone. They are not decayed: that would pull a learned scale to zero, which
makes it useless. In files the optimizer is that of the plain model.
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
    """Yield an optimizer and its inner optimizers."""
    yield optimizer
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    for part in inner:
        if part is not None:
            yield from parts_of(part)


class AddedVariables:
    """An optimizer that trains the learned variables of a model, until this is removed."""

    def __init__(self, optimizer: Any, model: Any) -> None:
        self.optimizer, self.model = optimizer, model
        vars(model).setdefault(_ADOPTED, []).append(optimizer)
        reconcile(model)

    def remove(self) -> None:
        """Remove the variables and their slots from the optimizer."""
        held = vars(self.model).get(_ADOPTED, [])
        held[:] = [other for other in held if other is not self.optimizer]
        if not held:
            vars(self.model).pop(_ADOPTED, None)
        if self.optimizer is not getattr(self.model, "optimizer", None):
            _agree(self.optimizer, self.model, [])


def reconcile(model: Any) -> None:
    """Make the optimizers of a model train exactly its current learned variables."""
    optimizers = _optimizers_of(model)
    learned = learned_in(model) if optimizers else []
    for optimizer in optimizers:
        _agree(optimizer, model, learned)


def learned_in(model: Any) -> list[Any]:
    """Return the trained variables that algorithms have added to a model."""
    return [variable for variable in model.trainable_variables if _is_ours(variable)]


def _optimizers_of(model: Any) -> list[Any]:
    given = [*vars(model).get(_ADOPTED, ()), getattr(model, "optimizer", None)]
    return list({id(optimizer): optimizer for optimizer in given if optimizer is not None}.values())


def _is_ours(variable: Any) -> bool:
    return str(getattr(variable, "name", "")).startswith(OURS)


def _agree(optimizer: Any, model: Any, learned: Sequence[Any]) -> None:
    """Make an optimizer train these learned variables and no others."""
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
            "optimizer: a MultiOptimizer that is already built cannot train additional variables; create "
            "a new one after compress(): model.compile(optimizer, ...)."
        )


def _without(variables: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    known = {id(other) for other in others}
    return [variable for variable in variables if id(variable) not in known]


# -- slots -------------------------------------------------------------------------------------------


def _slots(part: Any, count: int) -> dict[str, list[Any]]:
    """Return the lists of per-variable slots of an optimizer, by attribute."""
    return {
        name: list(held)
        for name, held in vars(part).items()
        if isinstance(held, list)
        and len(held) == count
        and name not in ("_variables", "_trainable_variables")
        and all(slot is None or isinstance(slot, keras.Variable) for slot in held)
    }


def slots_of(model: Any, variable: Any) -> dict[str, Any]:
    """Return copies of an optimizer's slots for a variable; empty if there are none."""
    return {name: to_array(slot) for name, slot in _find_slots(model, variable).items()}


def put_slots(model: Any, variable: Any, slots: Mapping[str, Any]) -> bool:
    """Restore the result of :func:`slots_of`; False if no optimizer has the variable yet."""
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
    """Remove variables from an optimizer."""
    trained = list(part._trainable_variables)
    stays = [bool(_without([variable], gone)) for variable in trained]
    for name, held in _slots(part, len(trained)).items():
        for slot in (slot for slot, stay in zip(held, stays, strict=True) if not stay):
            part._tracker.untrack(slot)
        vars(part)[name] = [slot for slot, stay in zip(held, stays, strict=True) if stay]
    _number(part, [variable for variable, stay in zip(trained, stays, strict=True) if stay])


def _insert(part: Any, added: Sequence[Any], model: Any) -> None:
    """Insert variables into a built optimizer, in the order of the model."""
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
    """Return new slots for variables, created by the optimizer, which is otherwise unchanged."""
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
    for variable in _without(part._variables, kept):  # duplicates of variables that exist once
        part._tracker.untrack(variable)
    return fresh


def _number(part: Any, variables: list[Any]) -> None:
    vars(part)["_trainable_variables"] = variables
    keys = {part._var_key(variable): i for i, variable in enumerate(variables)}
    vars(part)["_trainable_variables_indices"] = keys


# -- decay and files -----------------------------------------------------------------------------------


def _spare_from_decay(part: Any, learned: Sequence[Any]) -> None:
    """Exclude learned variables from weight decay; Keras's own method for this cannot be undone."""
    held, spared = (set(vars(part).get(name, ())) for name in (_EXCLUDED, _SPARED))
    keys = {part._var_key(variable) for variable in learned}
    if keys == spared:
        return
    for name, value in ((_EXCLUDED, held - spared | keys), (_SPARED, keys)):
        vars(part).pop(name, None)
        if value:
            vars(part)[name] = value
    known = vars(part).get(f"{_EXCLUDED}_cache", {})  # decisions cached by Keras
    for key in keys | spared:
        known.pop(key, None)


def _hide_in_files(part: Any, hides: bool) -> None:
    """Make an optimizer save and load only its slots for variables of the model."""
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
    """An optimizer without its learned variables, for files."""

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
