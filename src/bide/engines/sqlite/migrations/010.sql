-- Version 10. Groups that enter a limited queue between two deliveries take turns in the order of entering:
-- `turn` is the number of the group that entered last; see bide.model.rank. It was how many turns there
-- were, of which each group had twice the number, or one less if it had entered since.
UPDATE bide_limit SET turn = 4096 * max(0, 2 * turn - 1);
UPDATE bide_group SET turn = 4096 * turn, rank = CASE standing WHEN 1 THEN 4096 * turn ELSE rank END;
