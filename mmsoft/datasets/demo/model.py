"""Sets the number of classes everywhere in a model."""
from typing import Any, Dict, List, Optional

from mmsoft.utils.config import map_dicts

QUERIES = 100  # more than a scene has objects; some models pick that many positions of a small feature map


def _class_weight(weight: List[float], count: int) -> Optional[List[float]]:
    """Keeps a weight of the last class, which then is 'no object', and drops what is tuned to the classes."""
    if len(set(weight[:-1])) != 1:
        return None
    return [weight[0]] * count + [weight[-1]] * (weight[-1] != weight[0])


def with_counts(model: Dict[str, Any], count: int) -> Dict[str, Any]:
    """The same model for another number of classes, and with queries for small pictures.

    Args:
        model: Config of a detector, segmenter or classifier, or a part of it; it is left as it is.
        count: Number of classes.
    """

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        counts = dict(num_classes=count, num_things_classes=count, num_stuff_classes=0)
        part.update({key: value for key, value in counts.items() if isinstance(part.get(key), int)})
        if isinstance(part.get('num_queries'), int):
            part['num_queries'] = min(part['num_queries'], QUERIES)
        if isinstance(part.get('class_weight'), (list, tuple)):
            part['class_weight'] = _class_weight(list(part['class_weight']), count)
        return part

    # A region proposal network tells objects from background, whatever the classes.
    proposing = {key: model[key] for key in ('rpn_head', ) if key in model}
    return dict(map_dicts(model, visit), **proposing)
