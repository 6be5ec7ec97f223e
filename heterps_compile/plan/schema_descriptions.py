"""What the JSON Schema of ``plan.json`` says of values whose names do not tell all.

Left out: the schema (``schema.py``).
"""

STEADY = "Batches follow one another without end, each as long as the slowest stage takes; the floor is held here."

ALONE = "One batch through the schedule, fill, drain and ways included; what a step of training takes."

BOUND = (
    "No plan of the same problem has a lower value: the layers as they are grouped, in the order in which the stages "
    "list them, with the limits of the request; 0 where nothing is proven."
)

BOUND_OF_ALL_ORDERS = (
    "The same for the layers in every order that the model allows, no higher than ``bound``; where both are equal, no "
    "division of the layers into stages has a lower value; 0 where nothing is proven."
)

STEADY_BOUND = (
    "The part of the bound that the steady state proves, whose batches take no longer than a step; 0 in that reading, "
    "and where nothing is proven."
)

OTHER = (
    "What the other objective about money would choose for the same request: price beside cost, cost beside price; "
    "null without a throughput floor, for other objectives, and where a note says that it was not looked for."
)

IDLE = (
    "Units that are rented with whole machines and that no stage uses, by device type; paid like the others. Left out "
    "where there are none."
)

BUBBLE = "That of the steady state in inference, of one batch alone in training; either has a place of its own above."

INPUTS = "Of activations_bytes, what entered a stage that recomputes, for the micro-batches under way; else 0."

READING = (
    "What values and bounds are of, and what is held to the floor: batches that follow one another, or the simulated "
    "step; plans of before are of the steady state."
)
DELAY = "From the end of its forward until the next stage has its values; left out for 0."
OVERLAP = "Part of the way of its values in which either stage is occupied, and the wire too; left out for 0."
TIMES = "Other counts lie on straight lines between these, over the samples of a micro-batch; empty if not known."
