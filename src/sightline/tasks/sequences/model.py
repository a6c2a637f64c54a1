"""The model of a run on sequences, and that of a file of weights."""

from sightline.models.sequence import SEQUENCE_MODELS, SequenceEncoder, create_sequence_model
from sightline.models.weights.fit import MismatchError, compare
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.reader import Weights, read_weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import CardError
from sightline.tasks.create import restore
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.config import Data, Model
from sightline.tasks.sequences.data import SEQUENCE_TASKS
from sightline.util.errors import InputError

OWN = ("num_tokens", "num_classes", "towers")  # of the task, not of the user


def build(config: Model, data: Data) -> tuple[SequenceEncoder, SequenceCard]:
    """The model with its starting weights, and its card.

    Raises:
        InputError, FileError: there is no such model or argument, it is not of this task, or the weights do not fit.
    """
    task = SEQUENCE_TASKS[data.name]
    if config.name != f"lra_{data.name}":
        raise InputError(f"model.name: {config.name!r} is not a model of {data.name}; give lra_{data.name}")
    arguments: dict[str, object] = dict(config.args)
    if given := [key for key in OWN if key in arguments]:
        raise InputError(f"model.args: {given[0]} follows from the task {data.name}; leave it out")
    if config.attention is not None:
        arguments["attention"] = config.attention
    length = data.length or task.length
    longest = arguments.get("max_length", SEQUENCE_MODELS[config.name]["max_length"])
    if not isinstance(longest, int) or length > longest:
        raise InputError(
            f"data.length: {length} is more than the {longest} tokens of the model; "
            f"give model.args a max_length of at least {length}"
        )
    drops = {"drop_rate": config.drop, "drop_path_rate": config.drop_path}
    model = create_sequence_model(config.name, **{**drops, **arguments})
    if config.checkpoint is not None:
        weights = read_weights(config.checkpoint)
        check_recorded(weights, model)
        if mismatch := compare(weights.state, model):
            raise MismatchError(f"{config.checkpoint}: the weights do not fit the model", mismatch)
        model.load_state_dict(weights.state)
    model.set_grad_checkpointing(config.grad_checkpointing)
    return model, SequenceCard(config.name, arguments, task.classes, (length,), data.name)


def open_model(weights: Weights) -> Loaded:
    """The model in a file that `sightline train` wrote, in evaluation mode."""
    card = SequenceCard.from_metadata(weights.metadata)
    model = restore(card, weights.state, lambda: create_sequence_model(card.name, **card.arguments))
    if card.length > model.max_length:
        raise CardError(f"its card has a length of {card.length} for a model of {model.max_length} tokens")
    return Loaded(model, card, None, card.classes, weights.path, "sequences")
