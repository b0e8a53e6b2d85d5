-- Groups that enter a limited queue between two deliveries take turns in the order of entering: `turn` of
-- `limited` is the number of the group that entered last; see bide.model.rank. It was how many messages
-- were served; a group had twice the number, or one less if it had entered since.
UPDATE bide.limited SET turn = 4096 * greatest(0, 2 * turn - 1);
UPDATE bide.turn SET turn = 4096 * turn;
