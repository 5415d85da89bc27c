-- Move the end of many leases of one partition to now + term.
-- KEYS     1 due   2.. heads
-- ARGV     four for each head: run id, token, nonce, term in ms
-- Returns  {OK, then for each head: 1 or 0, mail, seq, created}; {FOREIGN, key}
-- A lease that ran out and that nobody took is renewed: only the token says who may write.
-- A head that is not one loses its own lease only: the others of the call are not to blame.
local bad = foreign({'zset'})
if bad then return {'FOREIGN', bad} end
local now = clock()
local answer = {'OK'}
for i = 2, #KEYS do
  local a = (i - 2) * 4
  local kind = redis.call('TYPE', KEYS[i])
  if type(kind) == 'table' then kind = kind.ok end
  local h = kind == 'hash' and redis.call('HMGET', KEYS[i], 't', 'k', 'l', 'm', 'n', 'c') or {}
  local held = h[1] == ARGV[a + 2] and h[2] == ARGV[a + 3] and h[3] ~= '0'
  if held then
    local ends = int(now + tonumber(ARGV[a + 4]))
    redis.call('HSET', KEYS[i], 'l', ends)
    redis.call('ZADD', KEYS[1], ends, ARGV[a + 1])
  end
  answer[#answer + 1] = held and '1' or '0'
  answer[#answer + 1] = h[4] or '0'
  answer[#answer + 1] = h[5] or '0'
  answer[#answer + 1] = h[6] or '0'
end
return answer
